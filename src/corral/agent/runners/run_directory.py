"""The directory an attempt works in: `work` (its current directory and home), `output`, `tmp`.

It belongs to a runner, because what a runner may write to is settled when its process starts. The
runner empties it between attempts; one that says so and did not is not used again.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from corral.runtime.files.removal import remove_tree

PARTS = ("work", "output", "tmp")


SETTLED_NS = 50_000_000
"""File systems stamp changes with a coarse clock: a stamp this old cannot be given again."""

Stamps = tuple[tuple[int, int], ...]


class RunDirectory:
    __slots__ = ("_parts", "_untouched", "path", "tmp", "work")

    def __init__(self, path: Path) -> None:
        self.path = str(path)
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

    def remove(self) -> None:
        with suppress(OSError):
            remove_tree(self.path)
