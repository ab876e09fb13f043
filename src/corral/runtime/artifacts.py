"""Files that an attempt left in its output folder become artifacts when it ends."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from corral.runtime.frames import frame

if TYPE_CHECKING:
    from corral.runtime.transfer import Transfer

assert sys.platform != "win32"


def keep(
    folder: str,
    kept: Mapping[str, tuple[int, int]],
    transfer: Callable[[], Transfer],
    send: Callable[[bytes], None],
) -> None:
    """Upload what is in the folder, but for what the job itself has uploaded just so before."""
    for path in _files(folder):
        # Opened without following links: what lies outside was not put here by the job.
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        with open(fd, "rb") as body:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode):
                continue
            if kept.get(path) == (about.st_size, about.st_mtime_ns):
                continue
            name = os.path.relpath(path, folder).encode("utf-8", "replace").decode()
            sha256, size = transfer().put_artifact(name, body, about.st_size)
            send(frame("artifact", name=name, size=size, file_sha256=sha256))


def _files(folder: str) -> Iterator[str]:
    """Regular files below a folder, in the order of their names; links are left alone."""
    try:
        with os.scandir(folder) as found:
            entries = list(found)
    except OSError:  # The job removed it, or took its own permission away.
        return
    entries.sort(key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _files(entry.path)
        elif entry.is_file(follow_symlinks=False):
            yield entry.path
