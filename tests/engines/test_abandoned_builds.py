"""Environments of standalone attempts whose build was cut short."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

BACKEND = """
import os, pathlib, time

def build_wheel(*_):
    pathlib.Path(os.environ["TMPDIR"], "began").touch()
    time.sleep(600)
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "slow"
version = "1.0"
"""
METADATA = "Metadata-Version: 2.1\nName: slow\nVersion: 1.0\n"

CANCELS = """
import pathlib, sys, threading, time
from corral.runtime.failures import AttemptFailed
from corral.runtime.process import system
from corral.runtime.standalone.environment import prepared
from corral.runtime.standalone.ticket import AttemptTicket

folder, isolate = sys.argv[1], sys.argv[2] == "True"
ticket = AttemptTicket("", "j", 1, "t", isolate=isolate, read_paths=(folder,))
document = {"work": {"type": "function"}, "requirements": ["slow"]}
abandoned, told = threading.Event(), []

def prepare():
    try:
        told.append(prepared(document, ticket, folder, print, abandoned))
    except AttemptFailed as error:
        told.append(error.failure["code"])

system.hold_descendants()
thread = threading.Thread(target=prepare)
thread.start()
while thread.is_alive() and not list(pathlib.Path(folder).glob("environments/*/tmp/began")):
    time.sleep(0.01)
abandoned.set()
system.kill_descendants()
thread.join()
print(told)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="walls and signals of Linux")
@pytest.mark.parametrize("isolate", [True, False])
def test_a_build_that_was_killed_is_no_environment(tmp_path: Path, isolate: bool) -> None:
    with tarfile.open(tmp_path / "slow-1.0.tar.gz", "w:gz") as archive:
        files = {"backend.py": BACKEND, "pyproject.toml": PROJECT, "PKG-INFO": METADATA}
        for name, text in files.items():
            member = tarfile.TarInfo(f"slow-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    environ = {**os.environ, "UV_FIND_LINKS": str(tmp_path), "UV_NO_INDEX": "1"}
    command = [sys.executable, "-c", CANCELS, str(tmp_path), str(isolate)]
    ran = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.stdout.endswith("['cancelled']\n"), ran.stdout + ran.stderr
    assert not [path for path in (tmp_path / "environments").iterdir() if path.is_dir()]
