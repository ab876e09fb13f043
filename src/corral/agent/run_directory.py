"""The directory an attempt works in: `work` (its current directory and home), `output`, `tmp`.

It belongs to a runner, because what a runner may write to is settled when its process starts. It
is emptied between attempts, and only when something was left in it.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

PARTS = ("work", "output", "tmp")


SETTLED_NS = 50_000_000
"""File systems stamp changes with a coarse clock: a stamp this old cannot be given again."""

Stamps = tuple[tuple[int, int], ...]


class RunDirectory:
    __slots__ = ("_parts", "_untouched", "as_json", "path", "tmp", "work")

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.as_json = msgspec.json.encode(self.path)
        self._parts = tuple(os.path.join(self.path, part) for part in PARTS)
        self.work, _, self.tmp = self._parts
        self._untouched: Stamps | None = None
        """What the directories looked like when they were last known to be empty."""

    def make(self) -> None:
        os.makedirs(self.path, exist_ok=True)
        for part in self._parts:
            os.mkdir(part, 0o700)

    def empty(self) -> bool:
        """Whether it is as it was made. Asked after every attempt, and for most of them a look at
        the times of change is enough: a job can set other times, but not those."""
        try:
            stamps = self._stamps()
            if stamps == self._untouched:
                return True
            self._untouched = None
            if not self._listed_empty():
                return False
        except OSError:
            return False
        # Windows stamps only when something was made, not when it changed.
        settled = time.time_ns() - max(changed for _, changed in stamps) > SETTLED_NS
        if settled and sys.platform != "win32":
            self._untouched = stamps
        return True

    def _stamps(self) -> Stamps:
        found = [os.lstat(path) for path in (self.path, *self._parts)]
        return tuple((status.st_ino, status.st_ctime_ns) for status in found)

    def _listed_empty(self) -> bool:
        with os.scandir(self.path) as entries:
            found = {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
        if len(found) != len(PARTS) or not found.issuperset(PARTS):
            return False
        return not any(os.listdir(part) for part in self._parts)

    def clear(self) -> bool:
        """Make it empty again; False when something in it resists. Symbolic links are removed and
        never followed: they may point out of what the job was allowed to touch."""
        try:
            for name in os.listdir(self.path):
                remove_tree(os.path.join(self.path, name))
            self.make()
        except OSError:
            return False
        return self.empty()

    def remove(self) -> None:
        with suppress(OSError):
            remove_tree(self.path)


def remove_tree(path: str) -> None:
    """Whatever somebody made of it. Links are removed, never followed."""
    if not os.path.isdir(path) or os.path.islink(path):
        os.unlink(path)
        return
    try:
        shutil.rmtree(path, onerror=_try_again)
    except RecursionError:
        # Deeper than Python recurses, and than a path can name: rm goes down step by step.
        subprocess.run(["rm", "-rf", "--", path], check=False, stderr=subprocess.DEVNULL)


def _try_again(function: Callable[..., Any], path: str, _error: Any) -> None:
    """A job may have taken its own permissions away."""
    for place in (os.path.dirname(path), path):
        if not os.path.islink(place):
            with suppress(OSError):
                os.chmod(place, stat.S_IRWXU)
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        function(path)
