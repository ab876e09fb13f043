"""Kills the scenario at its Nth system call that changes a file, then checks what is left.

A program of its own, `python -m tests.crash.sweep HOME FIRST STEP LAST [bulky]`: it forks for each
N, which is only sound in a process without threads, and is fast because everything is imported
once. It prints one JSON object for each N.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.crash import scenario, tracing


class Counter:
    """Counts calls that change something below a home, and kills at the Nth."""

    def __init__(self, home: Path, kill_at: int = 0) -> None:
        self._home = home
        self._kill_at = kill_at
        self.count = 0
        self.last = ""

    def __call__(self, call: tracing.Call) -> bool:
        changed = [path for path in map(Path, tracing.target(call)) if self._inside(path)]
        if not changed:
            return False
        names = [str(path.relative_to(self._home)) for path in changed]
        self.last = " ".join([call.name, *names])
        self.count += 1
        return self.count == self._kill_at

    def _inside(self, path: Path) -> bool:
        return path.is_relative_to(self._home)


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
