"""A control group (version 2) for each runner and build: whatever it starts stays in it, and one
write kills it all. Only where the agent may make some: as root, in a service, in a user session.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from corral import permissions
from corral.runtime.process import memory_kills

PREFIX = "corral-"
END_S = 10.0
"""How long killed processes may take to die: drivers take their time with a GPU's memory."""
ROUND_S, MAX_ROUND_S = 0.001, 0.02


class Cgroup:
    """The group of one runner, or of one step of a build."""

    def __init__(self, path: str) -> None:
        self.path = path

    def take_in(self, pid: int) -> bool:
        """A process that has started nothing yet. The kernel may take some milliseconds."""
        base = os.path.dirname(self.path)
        for folder in (os.path.dirname(base), base):  # It asks those that it passes through, too.
            permissions.restore(f"{folder}/cgroup.procs")
        try:
            _write(f"{self.path}/cgroup.procs", str(pid))
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """Everything in it: no fork gets past this."""
        with suppress(OSError):
            _write(f"{self.path}/cgroup.kill", "1")

    def empty(self) -> bool:
        """Whether nothing in it lives; what has ended and was not reaped does not count."""
        try:
            with _open(f"{self.path}/cgroup.events") as file:
                return "populated 0" in file.read()
        except OSError:
            return not os.path.exists(self.path)

    def remove(self) -> None:
        permissions.restore(os.path.dirname(self.path))
        with suppress(OSError):
            os.rmdir(self.path)

    async def end(self) -> bool:
        """Kill all of it; True when nothing is left."""
        until, pause_s = time.monotonic() + END_S, ROUND_S
        while time.monotonic() < until:
            self.kill()
            if self.empty():
                self.remove()
                return True
            await asyncio.sleep(pause_s)  # short at first, since most processes end at once
            pause_s = min(pause_s * 1.2, MAX_ROUND_S)
        return False


class Cgroups:
    """The groups of a worker, below the one that its agent lives in."""

    def __init__(self, home: Path) -> None:
        self._name = PREFIX + hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
        self._note = home / "cgroup"
        """Says where they are, for the next agent: it may live in another group."""
        self._base = ""

    async def open(self) -> int:
        """Before the first runner; how many processes of a former agent were ended."""
        swept = 0
        former = ""
        with suppress(OSError):
            former = self._note.read_text(encoding="utf-8").strip()
        if former and os.path.basename(former) == self._name:
            swept = await _sweep(former)
        if own := own_group():
            base = f"{own}/{self._name}"
            with suppress(OSError):
                with suppress(FileExistsError):
                    os.mkdir(base)
                permissions.restore(f"{base}/cgroup.kill")
                if os.access(f"{base}/cgroup.kill", os.W_OK):  # since Linux 5.14
                    self._note.write_text(base, encoding="utf-8")
                    self._base = base
        return swept

    def make(self, runner: str) -> Cgroup | None:
        """None where that is not to be had."""
        if not self._base:
            return None
        path = f"{self._base}/{os.getpid()}-{runner}"
        permissions.restore(self._base)
        try:
            os.mkdir(path)
        except OSError:
            return None
        return Cgroup(path)

    def close(self) -> None:
        with suppress(OSError):
            if self._base:
                os.rmdir(self._base)


def own_group() -> str:
    """The folder of the group that this process lives in; empty where there is none."""
    return memory_kills.folder("/proc")[0]


async def _sweep(base: str) -> int:
    """End what is in the groups below this one, and remove them."""
    swept = 0
    permissions.restore(base)
    with suppress(OSError):
        for entry in os.scandir(base):
            if entry.is_dir(follow_symlinks=False):
                with suppress(OSError), _open(f"{entry.path}/cgroup.procs") as file:
                    swept += len(file.read().split())
                await Cgroup(entry.path).end()
        os.rmdir(base)
    return swept


def _write(path: str, word: str) -> None:
    with _open(path, "w") as file:
        file.write(word)


def _open(path: str, mode: str = "r") -> IO[str]:
    """A job cannot write there, but take the owner's permissions away."""
    try:
        return open(path, mode)
    except PermissionError:
        if not permissions.restore(path):
            raise
    return open(path, mode)
