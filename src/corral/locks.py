"""Locks on whole files: held by one process at a time, and freed by the system when it ends."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

LOCKED_BYTE = 1 << 30


def lock_file(fd: int, *, wait: bool = False) -> bool:
    """Whether this process now holds the file alone. `wait`: until it does."""
    if sys.platform == "win32":
        import msvcrt

        # Nobody else may even read a locked byte there, so it is one far behind the text.
        os.lseek(fd, LOCKED_BYTE, os.SEEK_SET)
        while True:
            with suppress(OSError):  # one that waits gives up after ten seconds, too
                msvcrt.locking(fd, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
                return True
            if not wait:
                return False
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """Whether a living process holds that file, be it stopped."""
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not lock_file(fd)
    finally:
        os.close(fd)
