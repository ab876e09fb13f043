"""Strategy C against a real server that verifies signatures: nobody but the controller has keys."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import obstore
import psutil
import pytest
from obstore.store import S3Store

import corral
from corral.core.errors import Forbidden, StorageFailed, Unavailable
from tests.api.rest import Rest
from tests.e2e.s3 import KEY, SECRET, Wire, s3_server
from tests.eventually import eventually
from tests.live import CORRAL, LiveController


class Site(NamedTuple):
    client: corral.Client
    controller: LiveController
    wire: Wire
    bucket: Path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A controller whose assets live in a bucket, with URLs that are good for two seconds."""
    home = tmp_path_factory.mktemp("home")
    folder = tmp_path_factory.mktemp("s3") / "data"
    with s3_server(folder) as wire:
        (home / "corral.yaml").write_text(
            "assets:\n"
            "  bucket: s3://bucket/corral\n"
            f"  endpoint: http://127.0.0.1:{wire.port}\n"
            "  url_s: 2\n"
        )
        with (
            LiveController(home) as controller,
            corral.Client(controller.address, controller.token) as client,
        ):
            client.secrets.set("S3_ACCESS_KEY", KEY)
            client.secrets.set("S3_SECRET_KEY", SECRET)
            yield Site(client, controller, wire, folder / "bucket" / "corral")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.bin"
    path.write_bytes(os.urandom(2_000_000))
    return path


def digest(name: str) -> str:
    return hashlib.sha256(Path(name).read_bytes()).hexdigest()


def test_bytes_go_to_the_bucket_and_come_from_there(site: Site, file: Path) -> None:
    asset = site.client.put(file)
    stored = site.bucket / "assets" / asset.sha256[:2] / asset.sha256
    assert stored.read_bytes() == file.read_bytes()
    assert not (site.controller.home / "blobs" / asset.sha256[:2] / asset.sha256).exists()
    assert site.client.run(digest, ("data",), inputs={"data": asset}) == asset.sha256
    before = len(site.wire.requests)
    assert site.client.put(file) == asset
    assert not [one for one in site.wire.requests[before:] if one.startswith(b"PUT")]


def test_a_body_that_is_cut_off_is_gone_on_with(site: Site, file: Path) -> None:
    asset = site.client.put(file)
    site.wire.cut_after = [700_000]
    before = len(site.wire.requests)
    assert site.client.run(digest, ("data",), inputs={"data": asset}) == asset.sha256
    assert len([one for one in site.wire.requests[before:] if one.startswith(b"GET")]) == 2
    assert site.wire.cut_after == []


def test_an_agent_that_is_killed_in_the_middle_goes_on_where_it_was(site: Site, file: Path) -> None:
    asset = site.client.put(file)
    site.wire.hangs_after = [900_000]
    part = site.controller.home / "worker" / "assets" / "parts" / asset.sha256
    handle = site.client.submit(digest, ("data",), inputs={"data": asset})
    eventually(lambda: part.exists() and part.stat().st_size > 500_000, "a part")
    before = len(site.wire.heads)
    _agent(site.controller).kill()
    assert handle.result(60) == asset.sha256
    (again,) = [one for one in site.wire.heads[before:] if one.startswith(b"GET")]
    asked = re.search(rb"range: bytes=(\d+)-", again.lower())
    assert asked is not None
    assert int(asked[1]) > 500_000


def test_a_url_that_expired_is_asked_for_again(site: Site, file: Path) -> None:
    asset = site.client.put(file)
    site.wire.stalls = [3.5]
    before = len(site.wire.requests)
    assert site.client.run(digest, ("data",), inputs={"data": asset}) == asset.sha256
    gets = [one for one in site.wire.requests[before:] if one.startswith(b"GET")]
    assert len(set(gets)) == len(gets) == 2, "the second is another URL"


def test_a_job_that_waits_for_its_inputs_is_cancelled_at_once(site: Site, file: Path) -> None:
    asset = site.client.put(file)
    site.wire.stalls = [20.0]
    before = len(site.wire.requests)
    handle = site.client.submit(digest, ("data",), inputs={"data": asset})
    eventually(lambda: any(one.startswith(b"GET") for one in site.wire.requests[before:]), "a GET")
    handle.cancel()
    with pytest.raises(corral.JobCancelled):
        handle.result(5)


def test_bytes_that_changed_in_the_bucket_are_a_named_failure(site: Site, file: Path) -> None:
    asset = site.client.put(file)
    stored = site.bucket / "assets" / asset.sha256[:2] / asset.sha256
    stored.write_bytes(stored.read_bytes()[:-1] + b"x")
    with pytest.raises(corral.JobFailed) as failed:
        site.client.run(digest, ("data",), inputs={"data": asset})
    assert failed.value.failure is not None
    assert failed.value.failure.code == "asset_corrupt"


def test_what_is_gone_from_the_bucket_is_a_named_failure(site: Site, file: Path) -> None:
    asset = site.client.put(file)
    site.client.admin.pause()
    try:
        handle = site.client.submit(digest, ("data",), inputs={"data": asset})
        obstore.delete(_bucket(site), f"assets/{asset.sha256[:2]}/{asset.sha256}")
    finally:
        site.client.admin.resume()
    with pytest.raises(corral.JobFailed) as failed:
        handle.result(60)
    assert failed.value.failure is not None
    assert failed.value.failure.code == "asset_missing"


def test_artifacts_go_to_the_bucket_and_are_fetched_from_there(site: Site, tmp_path: Path) -> None:
    def paint(data: bytes) -> None:
        from corral import job

        (job.output_dir() / "deep").mkdir()
        (job.output_dir() / "deep" / "a picture.png").write_bytes(data)
        (job.output_dir() / "empty").write_bytes(b"")

    data = os.urandom(1_500_000)
    handle = site.client.submit(paint, (data,))
    handle.result(60)
    found = {one.name: one for one in handle.artifacts()}
    key = f"artifacts/{handle.id}/1/deep/a picture.png"
    picture = found["deep/a picture.png"]
    assert picture.uri == f"s3://bucket/corral/{key}"
    assert (picture.size, picture.file_sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert (site.bucket / key).read_bytes() == data
    sha256 = picture.file_sha256
    assert not (site.controller.home / "blobs" / sha256[:2] / sha256).exists()
    assert handle.download("deep/a picture.png", tmp_path / "out").read_bytes() == data
    assert handle.download("empty", tmp_path / "none").read_bytes() == b""
    path = f"/jobs/{handle.id}/artifacts/deep/a%20picture.png"
    answer = Rest(site.controller)("GET", path, Range="bytes=1499990-")
    assert (answer.status, answer.body) == (206, data[-10:])


def test_an_artifact_that_changed_in_the_bucket_is_not_handed_out(
    site: Site, tmp_path: Path
) -> None:
    def paint() -> None:
        from corral import job

        (job.output_dir() / "picture").write_bytes(b"as it was painted")

    handle = site.client.submit(paint)
    handle.result(60)
    obstore.put(_bucket(site), f"artifacts/{handle.id}/1/picture", b"as it was spoiled")
    with pytest.raises(StorageFailed, match="damaged"):
        handle.download("picture", tmp_path / "picture")
    assert not (tmp_path / "picture").exists()


def test_a_signed_url_is_good_for_one_object_and_one_verb(site: Site, file: Path) -> None:
    sha256 = digest(str(file))
    asked = {"sha256": sha256, "size": file.stat().st_size}
    found = Rest(site.controller)("POST", "/assets", asked).json
    url = found["put_url"]
    assert not found["known"]
    assert url.startswith(f"http://127.0.0.1:{site.wire.port}/bucket/corral/assets/")
    other = "f" * 64
    assert _ask("PUT", url.replace(sha256, other), b"evil") == 403
    assert _ask("PUT", f"{url[:-4]}0000", b"evil") == 403
    assert _ask("GET", url) == 403
    assert not (site.bucket / "assets" / "ff" / other).exists()
    assert _ask("PUT", url, file.read_bytes()) == 200


def test_no_job_gets_the_credentials(site: Site) -> None:
    with pytest.raises(Forbidden, match="controller's own"):
        site.client.submit(digest, ("x",), secrets=["S3_SECRET_KEY"])


def test_wrong_credentials_are_said_and_not_shown(site: Site, tmp_path: Path) -> None:
    (tmp_path / "new").write_bytes(os.urandom(1000))
    site.client.secrets.set("S3_SECRET_KEY", "not-the-secret-at-all")
    try:
        with pytest.raises((StorageFailed, Unavailable), match="bucket") as said:
            site.client.put(tmp_path / "new")
        assert "not-the-secret" not in str(said.value)
        assert "Signature=" not in str(said.value)
    finally:
        site.client.secrets.set("S3_SECRET_KEY", SECRET)


def test_credentials_and_urls_are_nowhere_but_in_the_vault(site: Site, file: Path) -> None:
    asset = site.client.put(file)

    def environment() -> str:
        return repr(dict(os.environ))

    seen = site.client.run(environment, inputs={"data": asset})
    shown = subprocess.run(
        [CORRAL, "config", "--json"], env=site.controller.environ, capture_output=True, check=True
    ).stdout
    places = [path for path in site.controller.home.rglob("*") if path.is_file()]
    texts = {str(path): path.read_bytes() for path in places if path.name != "secrets"}
    for where, text in {**texts, "a job": seen.encode(), "corral config": shown}.items():
        assert SECRET.encode() not in text, where
        assert b"X-Amz-Signature" not in text, where


def _agent(controller: LiveController) -> psutil.Process:
    assert controller.process is not None
    children = psutil.Process(controller.process.pid).children()
    return next(one for one in children if "corral.agent.main" in one.cmdline())


def _bucket(site: Site) -> S3Store:
    return S3Store.from_url(
        "s3://bucket/corral",
        endpoint=f"http://127.0.0.1:{site.wire.port}",
        access_key_id=KEY,
        secret_access_key=SECRET,
        client_options={"allow_http": True},
    )


def _ask(verb: str, url: str, body: bytes | None = None) -> int:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=20)
    try:
        connection.request(verb, f"{parts.path}?{parts.query}", body)
        return connection.getresponse().status
    finally:
        connection.close()
