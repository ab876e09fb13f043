"""Strategy A: one folder, mounted at different places by controller and worker."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import corral
from corral.core.errors import AssetNotFound
from tests.api.rest import Rest
from tests.live import CORRAL, LiveController

DATA = os.urandom(1_000_000)
SHA256 = hashlib.sha256(DATA).hexdigest()


class Site(NamedTuple):
    client: corral.Client
    controller: LiveController
    root: Path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("home")
    root = tmp_path_factory.mktemp("nas")
    (root / "models").mkdir()
    (root / "models" / "base.bin").write_bytes(DATA)
    (home / "corral.yaml").write_text(
        f"assets:\n  root: {root}\n  spellings: ['Z:\\models', //nas/share]\n"
    )
    with (
        LiveController(home) as controller,
        corral.Client(controller.address, controller.token, home=home) as client,
    ):
        yield Site(client, controller, root)


def look(name: str) -> tuple[str, str]:
    path = Path(name)
    return str(path.resolve()), hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_of_the_root_is_named_and_read_in_place(site: Site) -> None:
    asset = corral.shared("models/base.bin")
    found = site.client.run(look, ("base",), inputs={"base": asset})
    assert found == (str(site.root / "models" / "base.bin"), SHA256)


@pytest.mark.parametrize("path", [r"z:\Models\models\base.bin", r"\\NAS\share\models\base.bin"])
def test_other_spellings_of_the_root_are_the_same_file(site: Site, path: str) -> None:
    rest = Rest(site.controller)
    assert rest("POST", "/assets", {"path": path}).json["path"] == "models/base.bin"
    source = "import hashlib; print(hashlib.sha256(open('x', 'rb').read()).hexdigest())"
    body = {"script": {"source": source}, "inputs": {"x": {"path": path}}}
    job = rest("POST", "/jobs", body).json["job_ids"][0]
    rest.ended(job)
    assert rest("GET", f"/jobs/{job}/output").body.decode().strip() == SHA256


def test_putting_a_file_of_the_root_sends_nothing(site: Site) -> None:
    asset = site.client.put(site.root / "models" / "base.bin")
    assert asset == corral.Asset(SHA256, len(DATA), "base.bin", "models/base.bin")
    assert not (site.controller.home / "blobs" / SHA256[:2] / SHA256).exists()
    assert site.client.run(look, ("x",), inputs={"x": asset})[1] == SHA256
    assert not (site.controller.home / "worker" / "assets" / SHA256).exists()


def test_a_job_cannot_write_to_what_it_reads_in_place(site: Site) -> None:
    def spoil() -> str:
        try:
            with open("base", "r+b") as file:
                file.write(b"x")
        except PermissionError:
            return "refused"
        return "spoilt"

    asset = corral.shared("models/base.bin")
    assert site.client.run(spoil, inputs={"base": asset}) == "refused"


@pytest.mark.parametrize("path", ["models/none.bin", "models", "out"])
def test_what_is_not_a_file_inside_the_root_is_refused(site: Site, path: str) -> None:
    if path == "out" and not (site.root / "out").is_symlink():
        (site.root / "out").symlink_to("/etc/hostname")
    with pytest.raises(AssetNotFound, match="shared root"):
        site.client.submit(look, ("x",), inputs={"x": corral.shared(path)})


def test_a_file_that_changed_after_the_submission_is_a_named_failure(site: Site) -> None:
    (site.root / "changing").write_bytes(b"as it was")
    site.client.admin.pause()
    try:
        handle = site.client.submit(look, ("x",), inputs={"x": corral.shared("changing")})
        (site.root / "changing").write_bytes(b"as it is!")
    finally:
        site.client.admin.resume()
    with pytest.raises(corral.JobFailed) as failed:
        handle.result(60)
    assert failed.value.failure is not None
    assert failed.value.failure.code == "asset_corrupt"


def test_artifacts_go_into_the_root(site: Site, tmp_path: Path) -> None:
    def paint(data: bytes) -> None:
        from corral import job

        (job.output_dir() / "deep").mkdir()
        (job.output_dir() / "deep" / "picture").write_bytes(data)

    handle = site.client.submit(paint, (DATA[::-1],))
    handle.result(60)
    (found,) = handle.artifacts()
    key = f"artifacts/{handle.id}/1/deep/picture"
    sha256 = hashlib.sha256(DATA[::-1]).hexdigest()
    assert (found.uri, found.size, found.file_sha256) == (f"shared:{key}", len(DATA), sha256)
    assert (site.root / key).read_bytes() == DATA[::-1]
    assert not (site.controller.home / "blobs" / sha256[:2] / sha256).exists()
    assert handle.download("deep/picture", tmp_path / "out").read_bytes() == DATA[::-1]
    assert site.client.run(look, ("x",), inputs={"x": corral.shared(key)})[1] == sha256


# --- another machine -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A controller without a worker of its own, to which others join over TLS."""
    home, root = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("nas")
    (root / "base.bin").write_bytes(DATA)
    (home / "corral.yaml").write_text(
        f"tls: always\nadvertise: 127.0.0.1\nshutdown_grace_s: 1\nworker: {{enabled: false}}\n"
        f"assets: {{root: {root}}}\n"
    )
    with LiveController(home) as controller, corral.Client(home=home) as client:
        yield Site(client, controller, root)


@contextlib.contextmanager
def joined(far: Site, home: Path, name: str, yaml: str) -> Iterator[None]:
    (home / "corral.yaml").write_text(f"{yaml}worker: {{name: {name}, cpus: 1}}\n")
    environ = {**far.controller.environ, "CORRAL_HOME": str(home)}
    invited = subprocess.run(
        [CORRAL, "invite", "--json"],
        env=far.controller.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    invitation = json.loads(invited.stdout)["invitation"]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [CORRAL, "worker", "join", invitation], env=environ, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


@pytest.mark.long
def test_each_machine_has_the_root_at_its_own_place(far: Site, tmp_path: Path) -> None:
    mounted = tmp_path / "mounted elsewhere"
    shutil.copytree(far.root, mounted)
    with joined(far, tmp_path, "elsewhere", f"assets: {{root: '{mounted}'}}\n"):
        found = far.client.run(
            look, ("x",), inputs={"x": corral.shared("base.bin")}, worker="elsewhere", wait=True
        )
    assert found == (str(mounted / "base.bin"), SHA256)


@pytest.mark.long
def test_a_worker_without_the_root_gets_it_over_http(far: Site, tmp_path: Path) -> None:
    def paint() -> None:
        from corral import job

        (job.output_dir() / "picture").write_bytes(b"painted")

    with joined(far, tmp_path, "without", ""):
        asset = corral.shared("base.bin")
        path, sha256 = far.client.run(
            look, ("x",), inputs={"x": asset}, worker="without", wait=True
        )
        handle = far.client.submit(paint, worker="without")
        handle.result(60)
    assert (path, sha256) == (str(tmp_path / "worker" / "assets" / SHA256), SHA256)
    (artifact,) = handle.artifacts()
    assert artifact.uri == ""
    assert handle.download("picture", tmp_path / "picture").read_bytes() == b"painted"
