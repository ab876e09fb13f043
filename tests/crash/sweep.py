"""Kills the scenario at its Nth system call that changes a file, then checks what is left.

A program of its own, `python -m tests.crash.sweep HOME FIRST STEP LAST [bulky]`: it forks for each
N, which is only sound in a process without threads, and is fast because everything is imported
once. It prints one JSON object for each N.
"""

from __future__ import annotations

import asyncio
import collections
import json
import os
import re
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.crash import scenario, tracing

_BY_CHANCE = re.compile(r"(?<=/)[0-9a-f]{16,}|(?<=blobs/)[0-9a-f]{2}(?=/|$)|\.[\w.]+\.[0-9a-f]{8}$")
"""Names of blobs, of the folders they are in, and of files that are renamed once complete."""


class Counter:
    """Counts calls that change something below a home, and kills at the Nth; with a `site`, at the
    Nth of that site."""

    def __init__(self, home: Path, kill_at: int = 0, site: str = "") -> None:
        self._home = home
        self._kill_at = kill_at
        self._site = site
        self.sites: collections.Counter[str] = collections.Counter()
        self.last = ""

    @property
    def count(self) -> int:
        return self.sites.total()

    def __call__(self, call: tracing.Call) -> bool:
        changed = [path for path in map(Path, tracing.target(call)) if self._inside(path)]
        if not changed:
            return False
        names = [str(path.relative_to(self._home)) for path in changed]
        self.last = " ".join([call.name, *names])
        site = _site(call.name, names)
        self.sites[site] += 1
        reached = self.sites[site] if self._site else self.count
        return self._site in ("", site) and reached == self._kill_at

    def _inside(self, path: Path) -> bool:
        return path.is_relative_to(self._home)


def _site(call: str, names: Sequence[str]) -> str:
    """A call and what it changes, with every incoming file and every blob as one: calls of one site
    leave the same kind of disk behind."""
    return " ".join([call, *(_BY_CHANCE.sub("*", name) for name in names)])


def interrupted(home: Path, number: int, *, bulky: bool) -> tuple[Counter, int, list[str]]:
    """Runs the scenario until its Nth call; what it had said by then."""
    counter = Counter(home, number)
    reading, writing = os.pipe()

    def program() -> None:
        os.dup2(writing, 1)
        scenario.run(home, bulky=bulky)

    status = tracing.watch(program, counter)
    os.close(writing)
    with open(reading, encoding="ascii") as file:
        said = file.read()
    return counter, status, [line for line in said.splitlines(keepends=False) if line]


def apart(work: Callable[[], object]) -> str:
    """Does something in a process of its own; its traceback, or nothing."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            work()
        except BaseException:
            os.write(writing, traceback.format_exc().encode()[-60_000:])
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8", errors="replace") as file:
        wrong = file.read()
    os.waitpid(pid, 0)
    return wrong


def checked(home: Path, said: Sequence[str]) -> str:
    return apart(lambda: asyncio.run(scenario.check(home, said)))


def main(arguments: Sequence[str]) -> None:
    folder, first, step, last, *more = arguments
    scenario.quiet()
    home = Path(folder)
    for number in range(int(first), int(last) + 1, int(step)):
        shutil.rmtree(home, ignore_errors=True)
        counter, status, said = interrupted(home, number, bulky="bulky" in more)
        killed = os.WIFSIGNALED(status)
        wrong = "" if killed or status == 0 else f"the scenario ended with status {status}"
        wrong = wrong or checked(home, said)
        told = {"number": number, "killed": killed, "at": counter.last, "said": said}
        print(json.dumps({**told, "count": counter.count, "wrong": wrong}), flush=True)
    shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
