"""The high-water mark: the last acknowledged record, kept outside the database.

SQLite drops committed records without a word when a bit of its write-ahead log flips. This file
remembers what was promised, so that the next start can see that a promise is gone.
"""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path

from corral.home import sync_folder

_SLOT = 512
_PREFIX = b"corral-mark 1 "

if sys.platform == "win32":
    _sync = os.fsync

    def _write_at(fd: int, data: bytes, place: int) -> None:
        os.lseek(fd, place, os.SEEK_SET)
        os.write(fd, data)

else:
    _sync = os.fdatasync
    _write_at = os.pwrite


class Mark:
    """Two slots written in turn, so that a torn write leaves the other one whole."""

    def __init__(self, path: Path) -> None:
        fresh = not path.exists()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        if fresh:
            _write_at(self._fd, b"\n" * (2 * _SLOT), 0)
            os.fsync(self._fd)
            sync_folder(path.parent)
        slots = _slots(path.read_bytes())
        self.seq = max((seq for seq in slots if seq is not None), default=None)
        """The highest intact mark, None where there is none."""
        self._turn = 0 if slots[0] is None or slots[0] != self.seq else 1
        self._synced = True

    def write(self, seq: int) -> None:
        """Moves the mark. Until `sync` it survives the end of the process, not a power cut; and
        until then only this slot changes, so that the other one is whole whatever happens."""
        text = _PREFIX + b"%d" % seq
        line = text + b" %08x\n" % zlib.crc32(text)
        _write_at(self._fd, line.ljust(64), self._turn * _SLOT)
        self._synced = False
        self.seq = seq

    def sync(self) -> None:
        if not self._synced:
            _sync(self._fd)
            self._turn ^= 1
            self._synced = True

    def close(self) -> None:
        os.close(self._fd)


def _slots(data: bytes) -> list[int | None]:
    found: list[int | None] = []
    for start in (0, _SLOT):
        text, _, crc = data[start : start + 64].strip().rpartition(b" ")
        intact = text.startswith(_PREFIX) and crc == b"%08x" % zlib.crc32(text)
        found.append(int(text[len(_PREFIX) :]) if intact else None)
    return found
