"""Workers follow their controller: a real older wheel, a real newer one, and one that is broken.

Installations here get Corral alone from pip (`PIP_NO_DEPS`) and find everything else where the
tests do: that a whole one works is shown in test_bare_machine.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import corral
from corral import wheel
from corral.cli.workers.join import enrol
from corral.joining import trust
from corral.joining.invitation import parse
from tests.e2e.test_joining import YAML, connected
from tests.eventually import eventually
from tests.live import LiveController


def package(folder: Path, version: str, *, protocol: str = "", **changed: str) -> Path:
    """The sources of this Corral under another version, with files that say something else."""
    made = folder / "corral"
    shutil.copytree(wheel.PACKAGE, made, ignore=shutil.ignore_patterns("__pycache__"))
    face = made / "__init__.py"
    face.write_text(face.read_text().replace(f'"{corral.__version__}"', f'"{version}"'))
    if protocol:
        wire = made / "protocol" / "messages.py"
        wire.write_text(wire.read_text().replace('VERSION = "1"', f'VERSION = "{protocol}"'))
    for name, text in changed.items():
        (made / "agent" / f"{name}.py").write_text(text)
    return made


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that Corral needs, without Corral."""
    folder = tmp_path_factory.mktemp("parts")
    for path in Path(sys.prefix).glob("lib/python*/site-packages/*"):
        if not path.name.startswith(("corral", "_editable_impl_corral", "pip")):
            (folder / path.name).symlink_to(path)
    (folder / "bin").mkdir()
    shutil.copy2(Path(sys.prefix) / "bin" / "uv", folder / "bin" / "uv")
    return folder


class Installed:
    """A machine that `/join` made a worker, some time ago."""

    def __init__(self, folder: Path, parts: Path, made: wheel.Wheel) -> None:
        self.home = folder / "home"
        self.software = self.home / "software"
        kept = {k: v for k, v in os.environ.items() if not k.startswith("CORRAL_")}
        self.environ = {**kept, "PIP_NO_DEPS": "1", "PYTHONPATH": str(parts)}
        name = f"{made.version}-{made.sha256[:8]}"
        place = self.software / name
        self.software.mkdir(parents=True)
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        path = folder / made.name
        path.write_bytes(made.data)
        install = [str(place / "bin" / "python"), "-m", "pip", "install", "-q", "--no-deps"]
        subprocess.run([*install, str(path)], check=True, env=kept)
        (place / ".complete").touch()
        (self.software / "current").symlink_to(name)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def current(self) -> str:
        return (self.software / "current").resolve().name

    @property
    def said(self) -> str:
        return (self.home / "out").read_text()

    def join(self, invitation: str, name: str) -> None:
        told = parse(invitation)
        pem = trust.fetched(told.host, told.port, told.sha256)
        card = enrol(told.url, told.token, name, pem)
        (self.home / "worker").mkdir()
        told_agent = {**card, "url": told.url, "certificate": pem}
        (self.home / "worker" / "agent.json").write_text(json.dumps(told_agent))

    def start(self) -> None:
        python = (self.software / "current").resolve() / "bin" / "python"
        with (self.home / "out").open("ab") as out:
            self.process = subprocess.Popen(
                [str(python), "-m", "corral.cli.main", "worker", "run", "--home", str(self.home)],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()


def version_of(client: corral.Client, name: str) -> str:
    return next((one.version for one in client.workers() if one.name == name), "")


def controller(folder: Path, **environ: str) -> LiveController:
    folder.mkdir()
    (folder / "corral.yaml").write_text(f"{YAML}worker: {{enabled: false}}\n")
    return LiveController(folder, environ=environ)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_older_worker_updates_itself_when_it_is_idle(home: Path, parts: Path) -> None:
    def slow() -> str:
        time.sleep(4)
        return os.environ["CORRAL_ATTEMPT"]

    old = wheel.built(package(home / "old", "0.0.9"), "0.0.9")
    with (
        controller(home / "controller") as live,
        corral.Client(home=live.home) as client,
        Installed(home / "machine", parts, old) as machine,
    ):
        machine.join(client.admin.invite_worker(), "follower")
        machine.start()
        eventually(lambda: connected(client, "follower"), "follower is connected", 60)
        assert version_of(client, "follower") == "0.0.9"
        handle = client.submit(slow, worker="follower")
        eventually(lambda: version_of(client, "follower") == corral.__version__, "its update", 120)
        assert handle.result(10) == "1"  # it was waited for
        eventually(lambda: machine.current.startswith(f"{corral.__version__}-"), "it is current")
        assert client.run(abs, (-5,), worker="follower", output=None) == 5
        assert machine.stop() == 0
        machine.start()  # after a reboot: the new one from the start
        eventually(lambda: connected(client, "follower"), "follower is connected", 60)
        assert version_of(client, "follower") == corral.__version__
        assert machine.stop() == 0


@pytest.mark.long
@pytest.mark.timeout(300)
def test_one_that_is_too_old_to_be_understood_updates_itself_too(home: Path, parts: Path) -> None:
    old = wheel.built(package(home / "old", "0.0.8", protocol="0"), "0.0.8")
    with (
        controller(home / "controller") as live,
        corral.Client(home=live.home) as client,
        Installed(home / "machine", parts, old) as machine,
    ):
        machine.join(client.admin.invite_worker(), "ancient")
        machine.start()
        eventually(lambda: version_of(client, "ancient") == corral.__version__, "its update", 120)
        assert "speaks protocol '0'" in machine.said
        assert client.run(abs, (-7,), worker="ancient", output=None) == 7


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_newer_one_that_does_not_come_up_costs_nothing(home: Path, parts: Path) -> None:
    broken = package(home / "broken", "9.9.9", main="raise SystemExit('this one is broken')\n")
    live = controller(home / "controller", PYTHONPATH=str(broken.parent))
    with (
        live,
        corral.Client(home=live.home) as client,
        Installed(home / "machine", parts, wheel.built()) as machine,
    ):
        assert client.health().version == "9.9.9"
        machine.join(client.admin.invite_worker(), "careful")
        machine.start()
        eventually(lambda: machine.said.count("does not come up here") == 2, "two tries", 120)
        eventually(lambda: connected(client, "careful"), "careful is connected", 60)
        assert "this one is broken" in machine.said
        assert version_of(client, "careful") == corral.__version__
        assert machine.current.startswith(f"{corral.__version__}-")
        assert client.run(abs, (-6,), worker="careful", output=None) == 6
        assert machine.stop() == 0


def test_versions_are_compared_as_numbers() -> None:
    assert wheel.older("0.9", "0.10")
    assert not wheel.older("1.0", "1")
    assert not wheel.older("0.2", "0.1.9")
    assert not wheel.older("0.1.dev3", "0.2")  # somebody's own: left alone


def test_the_same_files_make_the_same_wheel() -> None:
    assert wheel.is_editable()  # as the tests run it, so that no worker of theirs updates itself
    first, second = wheel.built(), wheel.built()
    assert first.sha256 == second.sha256
    assert first.name == f"corral-{corral.__version__}-py3-none-any.whl"
    assert f"msgspec=={__import__('msgspec').__version__}\n" in first.constraints
    assert "pytest" not in first.constraints
