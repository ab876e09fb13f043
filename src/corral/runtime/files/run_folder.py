"""The folders an attempt works in, and whether it left something in them.

The next order may be here already, so what is left is removed between the two, by the process
itself. The agent looks again before it calls a runner idle.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping

from corral.runtime.failures import AttemptFailed

PARTS = ("work", "output", "tmp")
CODE = "code"
"""Beside them, and for as long as the process lives: the modules that its functions name."""

SETTLED_NS = 50_000_000
"""File systems stamp changes with a coarse clock: a stamp this old cannot be given again."""


class RunFolder:
    def __init__(self, path: str) -> None:
        self.path = path
        self._parts = tuple(f"{path}{os.sep}{part}" for part in PARTS)

    def enter(self) -> None:
        os.chdir(self._parts[0])

    def place(self, inputs: Mapping[str, str], *, confined: bool) -> None:
        """Each input file under its name: as a link where this process is `confined`, else as a
        copy that the job may spoil, since the file itself serves other jobs too."""
        import shutil

        for name, path in inputs.items():
            target = os.path.join(self._parts[0], *name.split("/"))
            try:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                if confined:
                    os.symlink(path, target)
                else:
                    with open(path, "rb") as source, open(target, "xb") as copy:
                        shutil.copyfileobj(source, copy, 1 << 20)
                    if sys.platform != "win32":  # which removes nothing that is read-only
                        os.chmod(target, 0o444)
            except (FileExistsError, NotADirectoryError) as error:
                raise AttemptFailed(
                    "bad_package",
                    f"The input {name!r} and a file of the package have the same name. Rename one.",
                ) from error

    def close(self) -> None:
        """Nothing is held."""

    def untouched(self) -> bool:
        """Whether surely nothing was put into it since it was last seen empty."""
        return False

    def cleared(self) -> bool:
        """Whether it is empty, perhaps only now; False where something in it resists."""
        try:
            return not any(map(os.listdir, self._parts)) or _clear(self._parts)
        except (OSError, RecursionError):
            return False  # a folder is gone, or closed to us, or deeper than Python goes


if sys.platform != "win32":
    from corral.runtime.process import posix

    class HeldFolder(RunFolder):
        """Asked after every attempt, and most attempts touch nothing: then a look at the times of
        change is enough. A job can set other times, but not those."""

        def __init__(self, path: str) -> None:
            super().__init__(path)
            # Held open: asking them by name again after each attempt takes three times as long.
            self._fds = tuple(map(_open, self._parts))
            self._untouched: list[tuple[int, int]] | None = None

        def enter(self) -> None:
            os.fchdir(self._fds[0])

        def close(self) -> None:
            for fd in self._fds:
                os.close(fd)

        def untouched(self) -> bool:
            return self._untouched is not None and self._stamps() == self._untouched

        def _stamps(self) -> list[tuple[int, int]] | None:
            try:
                return [(found.st_ino, found.st_ctime_ns) for found in map(os.fstat, self._fds)]
            except OSError:
                return None

        def cleared(self) -> bool:
            stamps = self._stamps()
            empty = super().cleared()
            settled = stamps and time.time_ns() - max(at for _, at in stamps) > SETTLED_NS
            # What was removed just now has changed them: then they are taken anew the next time.
            self._untouched = stamps if empty and settled else None
            return empty

    def _open(folder: str) -> int:
        return posix.move_high(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def _clear(folders: tuple[str, ...]) -> bool:
    import shutil

    for folder in folders:
        with os.scandir(folder) as entries:
            for entry in entries:
                # Links are removed and never followed: they may point anywhere.
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)
    return not any(map(os.listdir, folders))
