"""Where attempts run: a directory for each, and none stays behind of one that was killed."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator

from corral.locks import lock_file
from corral.runtime.files.removal import remove_tree

PREFIX = "attempt-"

Held = tuple[str, int]
"""A directory, and the descriptor that holds its lock."""


def new_run_directory(home: str) -> str:
    """Held until this process ends, however it does. Those that nobody holds any more are removed
    meanwhile: their processes could not."""
    with locked(os.path.join(home, "attempts.lock")):
        left = _left(home)
        made = tempfile.mkdtemp(prefix=PREFIX, dir=home)
        _hold(made)  # its descriptor is closed by the end of the process, and inherited by nobody
    if left:
        threading.Thread(target=_remove, args=(left,), daemon=True).start()
    return made


def _left(home: str) -> list[Held]:
    with os.scandir(home) as entries:
        places = [one.path for one in entries if one.name.startswith(PREFIX)]
    return [(place, fd) for place in places if (fd := _hold(place)) is not None]


def _remove(left: list[Held]) -> None:
    for place, fd in left:
        with contextlib.suppress(OSError):
            remove_tree(place)
        os.close(fd)


def _hold(place: str) -> int | None:
    """None: another process holds it, or it is gone. Windows has no such locks: there they stay."""
    if sys.platform == "win32":
        return None
    try:
        fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    if lock_file(fd):
        return fd
    os.close(fd)
    return None


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """For one process at a time; the others wait for it. Whoever dies lets go."""
    with open(path, "ab") as file:
        lock_file(file.fileno(), wait=True)
        yield
