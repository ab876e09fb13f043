"""Files that an attempt left in its output folder become artifacts when it ends."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from corral import job
from corral.runtime.channels.frames import frame, stderr_frame
from corral.runtime.process import system

if TYPE_CHECKING:
    from corral.runtime.attempt_loop import RoadPort
    from corral.runtime.files.transfer import Transfer


def keep(
    folder: str,
    kept: Mapping[str, tuple[int, int]],
    transfer: Callable[[], Transfer],
    road: RoadPort,
) -> None:
    """Upload what is in the folder, but for what the job itself has uploaded just so before. A
    file that cannot be kept is told on stderr: the job is done, and again it would be the same."""
    for path in _files(folder):
        # Opened without following links: what lies outside was not put here by the job.
        try:
            fd = os.open(path, system.READ_NO_LINK)
        except OSError:
            continue
        with open(fd, "rb") as body:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode):
                continue
            if kept.get(path) == (about.st_size, about.st_mtime_ns):
                continue
            from corral.runtime.files.transfer import TransferRefused

            try:
                name = job._artifact_name(os.path.relpath(path, folder))
                sha256, size = transfer().put_artifact(name, body, about.st_size)
                road.send(frame("artifact", name=name, size=size, file_sha256=sha256))
            except (ValueError, TransferRefused) as error:
                words = f"corral: a file in the output folder was not kept: {error}\n"
                road.send(stderr_frame(words, road.redactor))


def _files(folder: str) -> Iterator[str]:
    """Regular files below a folder, in the order of their names; links are left alone."""
    todo = _entries(folder)
    while todo:
        entry = todo.pop()
        if entry.is_dir(follow_symlinks=False):
            todo += _entries(entry.path)
        elif entry.is_file(follow_symlinks=False):
            yield entry.path


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """What is in a folder, the last name first."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name, reverse=True)
    except OSError:  # The job removed it, or took its own permission away.
        return []
