"""corral secret: where a value may come from, and that it is shown nowhere."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Corral
from tests.live import CORRAL
from tests.sdk.orchestrator import Orchestrator, Served

VALUE = "typed-without-being-seen"

AT_A_TERMINAL = """\
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_a_typed_value_is_not_shown(served: Served, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", AT_A_TERMINAL, CORRAL, "secret", "set", "HF_TOKEN"]
    environ = {**os.environ, "CORRAL_HOME": str(tmp_path / "home")}
    with subprocess.Popen(
        command, env=environ, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        seen = b""
        while b"Value of HF_TOKEN: " not in seen:
            seen += os.read(ours, 1000)
        assert VALUE.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        os.write(ours, f"{VALUE}\n".encode())
        try:
            while piece := os.read(ours, 1000):
                seen += piece
        except OSError:  # the other side of the terminal is closed
            pass
    os.close(ours)
    assert process.returncode == 0, seen
    assert served.orchestrator.secrets == {"HF_TOKEN": VALUE}
    assert VALUE.encode() not in seen
    assert b"HF_TOKEN is set" in seen


def test_from_a_variable_and_only_from_there(
    corral: Corral, orchestrator: Orchestrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = corral("secret", "set", "HF_TOKEN", "--from-env")
    assert (missing.code, orchestrator.secrets) == (1, {})
    assert "export it first" in missing.err
    monkeypatch.setenv("HF_TOKEN", VALUE)
    assert corral("secret", "set", "HF_TOKEN", "--from-env", "--json").json["name"] == "HF_TOKEN"
    assert orchestrator.secrets == {"HF_TOKEN": VALUE}
    both = corral("secret", "set", "HF_TOKEN", "--from-env", "--stdin")
    assert "not both" in both.err
    # A value as an argument is wrong usage.
    assert corral("secret", "set", "HF_TOKEN", VALUE).code == 2


def test_an_empty_list_says_what_to_do(corral: Corral, orchestrator: Orchestrator) -> None:
    assert "corral secret set NAME" in corral("secret", "list").err
    assert corral("secret", "list", "--json").json == []
    orchestrator.secrets["HF_TOKEN"] = VALUE
    listed = corral("secret", "list").out
    assert "HF_TOKEN" in listed
    assert VALUE not in listed
    assert corral("secret", "rm", "HF_TOKEN").out == "HF_TOKEN is removed.\n"
    assert not orchestrator.secrets
