"""One request at a time to an image server, whichever runner of this machine it is from."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from corral import job
from corral.runtime.pipeline.backend import Tell

LOOK_S = 0.05


@contextmanager
def turn(folder: str, server: str, tell: Tell) -> Iterator[None]:
    """Waits for the server to be ours, and keeps it. A process that dies lets go of it."""
    name = hashlib.sha256(server.encode()).hexdigest()[:20]
    with open(os.path.join(folder, name), "ab") as file:
        while not _taken(file.fileno()):
            if tell.cancelled():
                raise job.Cancelled("The job was cancelled.")
            tell.progress(0.0, "another job has the server")
            time.sleep(LOOK_S)
        yield


if sys.platform == "win32":
    import msvcrt

    def _taken(fd: int) -> bool:
        os.lseek(fd, 0, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _taken(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
