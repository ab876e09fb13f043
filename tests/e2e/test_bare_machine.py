"""A machine without Corral becomes a worker by one line: real curl, real sh, real pip."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import corral
from tests.agent.test_service import exec_line
from tests.e2e.test_joining import YAML, connected
from tests.eventually import eventually
from tests.live import LiveController


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    home = tmp_path_factory.mktemp("inviting")
    (home / "corral.yaml").write_text(f"{YAML}worker: {{enabled: false}}\n")
    with LiveController(home) as made:
        yield made


@pytest.fixture
def client(live: LiveController) -> Iterator[corral.Client]:
    with corral.Client(home=live.home) as made:
        yield made


class Bare:
    """A machine with a person's empty folder on it. It shares this one's cache of downloads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        dropped = ("CORRAL_", "VIRTUAL_ENV", "PYTHON")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
        ours = Path.home()
        self.environ = {
            "PIP_CACHE_DIR": str(ours / ".cache" / "pip"),
            "PIP_CONFIG_FILE": str(ours / ".config" / "pip" / "pip.conf"),
            "UV_CACHE_DIR": str(ours / ".cache" / "uv"),
            **kept,
            "HOME": str(folder),
            "PATH": f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin",
        }
        self.environ.pop("XDG_DATA_HOME", None)
        self.home = folder / ".local" / "share" / "corral"
        self.software = self.home / "software"
        self.process: subprocess.Popen[str] | None = None

    def start(self, line: str) -> None:
        with (self.folder / "out").open("w") as out:
            self.process = subprocess.Popen(
                ["sh"],
                env=self.environ,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            assert self.process.stdin is not None
            with self.process.stdin as typed:
                typed.write(f"{line}\n")

    @property
    def ended(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None

    @property
    def said(self) -> str:
        return (self.folder / "out").read_text()

    def runs(self, line: str) -> int:
        self.start(line)
        assert self.process is not None
        return self.process.wait(60)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            started = psutil.Process(self.process.pid).children(recursive=True)
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(30)
            _, left = psutil.wait_procs(started, 30)
            assert not left


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Bare]:
    made = Bare(tmp_path / "person")
    yield made
    made.stop()


def _seen(token: str) -> list[list[str]]:
    """What processes were started with, where it shows the token of an invitation."""
    shown = [one.info["cmdline"] or [] for one in psutil.process_iter(["cmdline"])]
    return [words for words in shown if token in " ".join(words)]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_one_line_makes_a_bare_machine_a_worker(
    live: LiveController, client: corral.Client, bare: Bare
) -> None:
    printed = eventually(
        lambda: [one.strip() for one in live.log.splitlines() if "curl -fsSk" in one], "the line"
    )
    line = printed[0]
    before, _, after = client.admin.invite_machine().shell.partition("//")
    assert line.startswith(before + "//" + after.partition("corral://")[0])
    token = line.partition("corral://")[2].partition("@")[0]
    bare.start(f"{line} --foreground --name bare")
    eventually(
        lambda: bare.ended or bool(_seen(token)) or connected(client, "bare"),
        "bare joins or fails",
        360,
    )
    assert not _seen(token), "in the arguments of a process, which every other one can read"
    assert connected(client, "bare"), bare.said

    def prefix() -> str:
        import corral

        return corral.__file__

    assert client.run(abs, (-1,), worker="bare", output=None) == 1
    (installed,) = (one for one in bare.software.iterdir() if not one.is_symlink())
    assert (bare.software / "current").resolve() == installed
    command = bare.folder / ".local" / "bin" / "corral"
    assert f"The command is {command}; to type just corral: export PATH=" in bare.said
    assert subprocess.check_output([command, "--version"], text=True).strip()
    assert str(bare.home) in client.run(prefix, worker="bare", output=None)
    assert client.admin.invite_worker().partition("@")[0] not in _text_of(installed)
    bare.stop()
    assert "asked to stop" in bare.said

    unit = "from corral.agent.service import *; print(unit_text(Path(sys.argv[1]), 252, root=True))"
    python = installed / "bin" / "python"
    told = subprocess.check_output([python, "-c", unit, bare.home], env=bare.environ, text=True)
    words = exec_line(told)  # as the service would start it
    assert str(bare.software / "current") in words
    bare.start(shlex.join(words))
    eventually(lambda: connected(client, "bare"), "bare is connected")
    bare.stop()

    again = Bare(bare.folder / "second")  # what is installed is not installed again
    again.environ["CORRAL_HOME"] = str(bare.home)
    again.start(f"{line} --foreground")
    eventually(lambda: connected(client, "bare"), "bare is connected")
    assert "already the worker" in again.said
    assert "Installing" not in again.said
    assert f"The command is {bare.software}/current/bin/corral\n" in again.said
    again.stop()
    client.admin.revoke_worker("bare")


def _text_of(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("*.*") if path.is_file())


@pytest.mark.long
@pytest.mark.timeout(400)
def test_where_python_makes_no_environments_uv_does(client: corral.Client, bare: Bare) -> None:
    tools = bare.folder / "tools"
    tools.mkdir()
    for name in ("sh", "curl", "mktemp", "mkdir", "rm", "ln", "id", "env", "readlink"):
        (tools / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    (tools / "uv").symlink_to(Path(sys.prefix) / "bin" / "uv")
    real = f"{sys.base_prefix}/bin/python3"
    poor = f'case "$*" in *ensurepip*) exit 1 ;; esac\nexec {real} "$@"\n'
    (tools / "python3").write_text(f"#!/bin/sh\n{poor}")  # as Debian's without python3-venv
    (tools / "python3").chmod(0o755)
    bare.environ["PATH"] = str(tools)
    line = client.admin.invite_machine().shell
    bare.start(f"{line} --foreground --name poor")
    eventually(lambda: bare.ended or connected(client, "poor"), "poor joins or fails", 360)
    assert connected(client, "poor"), bare.said
    assert not list(bare.software.glob("current/lib/python*/site-packages/pip"))
    client.admin.revoke_worker("poor")


def test_another_key_is_refused(live: LiveController, client: corral.Client, bare: Bare) -> None:
    line = client.admin.invite_machine().shell
    pin = line.partition("sha256//")[2].partition("'")[0]
    other = line.replace(pin, "A" * 43 + "=")
    assert other != line
    bare.runs(other)
    assert "public key" in bare.said
    assert not bare.home.exists()


def test_the_script_is_no_secret_and_the_wheel_is_for_the_invited(
    live: LiveController, client: corral.Client, bare: Bare
) -> None:
    told = client.admin.invite_machine()
    fetch, _, _ = told.shell.partition(" | ")
    assert bare.runs(fetch) == 0
    token = told.invitation.removeprefix("corral://").partition("@")[0]
    assert token not in bare.said
    wheel = bare.said.partition("WHEEL='")[2].partition("'")[0]
    assert bare.runs(f"{fetch}/{wheel}") == 22  # curl's word for an answer of 400 and more
    assert "401" in bare.said
    stale = told.shell.replace(token, "x" * len(token))
    assert bare.runs(stale) == 1
    assert "Ask for a new line" in bare.said
    assert not list(bare.home.glob("software/*"))
    assert bare.runs(f"{fetch}.ps1") == 0
    assert token not in bare.said
    assert wheel in bare.said


def test_without_an_invitation_the_script_says_so(client: corral.Client, bare: Bare) -> None:
    line, _, _ = client.admin.invite_machine().shell.partition("CORRAL_INVITATION=")
    assert bare.runs(f"{line} sh -s --") == 1
    assert "between single quotes" in bare.said
    other = client.admin.invite_client("laptop", "submit")
    assert bare.runs(f"{line} CORRAL_INVITATION='{other}' sh -s --") == 1
    assert "This string is for clients" in bare.said
