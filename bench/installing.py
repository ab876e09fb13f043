"""Peers, installed by the benchmark itself: each into a virtual environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.peers import Peer


class CannotInstall(Exception):
    """Why a peer is not part of this run."""


def install(peer: Peer, environment: Path) -> None:
    """Once: a stamp inside the environment says what is in it."""
    for program in peer.debian:
        _from_debian(program)
    stamp, wanted = environment / "installed", "\n".join(peer.packages)
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print(f"installing {', '.join(peer.packages)}", flush=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
        pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "-q"]
        subprocess.run(
            [*pip, "--disable-pip-version-check", *peer.packages], check=True, capture_output=True
        )
    except subprocess.CalledProcessError as error:
        said = (error.stderr or b"").decode(errors="replace").strip().splitlines() or ["no word"]
        raise CannotInstall(f"pip could not install it: {said[-1][:200]}") from None
    stamp.write_text(wanted)


def _from_debian(program: str) -> None:
    if shutil.which(program):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise CannotInstall(f"{program} is missing; on Debian: apt-get install {program}")
    print(f"installing {program}", flush=True)
    apt = ["apt-get", "install", "-y", "-q", program]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    if subprocess.run(apt, env=environ, **quiet).returncode:  # type: ignore[call-overload]
        subprocess.run(["apt-get", "update", "-q"], env=environ, **quiet)  # type: ignore[call-overload]
        subprocess.run(apt, env=environ, **quiet)  # type: ignore[call-overload]
    if not shutil.which(program):
        raise CannotInstall(f"apt-get could not install {program}")
