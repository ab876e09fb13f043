"""The directory an attempt works in: `work` (its current directory and home), `output`, `tmp`.

It belongs to a runner, because what a runner may write to is settled when its process starts. The
runner empties it between attempts; one that says so and did not is not used again.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

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


def remove_tree(path: str) -> None:
    """Whatever somebody made of it. Links are removed, never followed; OSError where some of it
    resists, after all the rest is gone."""
    if not os.path.isdir(path) or os.path.islink(path):
        os.unlink(path)
    elif sys.platform == "win32":
        shutil.rmtree(path, onerror=_try_again)
    else:
        top = _opened(path)
        try:
            _empty(top)
        finally:
            os.close(top)
        os.rmdir(path)


if sys.platform == "win32":

    def _try_again(function: Callable[..., Any], path: str, _error: Any) -> None:
        """What is read-only is not removed there."""
        os.chmod(path, stat.S_IRWXU)
        function(path)

else:

    def _empty(top: int) -> None:
        """Names are looked up in open folders alone, so nobody who still writes there can lead us
        elsewhere. Folders within folders are moved up before their turn: none lies too deep."""
        new_names = (secrets.token_hex(8) for _ in itertools.count())
        resists: dict[str, OSError] = {}
        while names := [name for name in os.listdir(top) if name not in resists]:
            for name in names:
                try:
                    if not _unlinked(name, top):
                        _level(name, top, new_names)
                except FileNotFoundError:
                    continue  # gone by itself
                except OSError as error:
                    resists[name] = error
        for reason in resists.values():
            raise reason

    def _level(name: str, top: int, new_names: Iterator[str]) -> None:
        folder = _opened(name, top)
        try:
            for inner in os.listdir(folder):
                if not _unlinked(inner, folder):
                    os.close(_opened(inner, folder))  # only what may be written to can be moved
                    os.rename(inner, next(new_names), src_dir_fd=folder, dst_dir_fd=top)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=top)

    def _unlinked(name: str, folder: int) -> bool:
        """False where it is a folder."""
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            return False
        return True

    def _opened(name: str, folder: int | None = None) -> int:
        """A folder, and no link to one; a job may have taken its own permissions away."""
        found = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        try:
            with suppress(OSError):
                os.chmod(f"/proc/self/fd/{found}", stat.S_IRWXU)
            return os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=found)
        finally:
            os.close(found)
