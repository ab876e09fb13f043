"""Programs that tests borrow from Debian: installed where we may, named where we may not."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest


@cache
def missing(program: str, package: str) -> str:
    """Why the program cannot be had here; empty when it is there, perhaps since now."""
    if shutil.which(program):
        return ""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return f"needs {program}: apt-get install {package}"
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", package]
    with (Path(tempfile.gettempdir()) / "corral-tests-apt.lock").open("w") as lock:
        # apt does not wait for another apt; several test processes take turns.
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (install, ["apt-get", "update", "-q"], install):
            done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
            if shutil.which(program):
                return ""
    said = (done.stderr or done.stdout).strip().splitlines()
    return f"apt-get install {package} failed: {said[-1] if said else done.returncode}"


def needs(program: str, package: str) -> str:
    """The program's path; the test is skipped with the reason where there is none."""
    reason = missing(program, package)
    if reason:
        pytest.skip(reason)
    found = shutil.which(program)
    assert found
    return found
