"""The sha256 of files, counted once and remembered for as long as a file stays as it is."""

from __future__ import annotations

import hashlib
import os
import time
from io import BufferedReader

KEPT = 10_000
SETTLED_NS = 2_000_000_000
"""File systems stamp changes with a coarse clock: only a stamp this old cannot be given again."""

Stamp = tuple[int, int, int, int]


class Digests:
    """Safe to ask from several threads: at worst two of them count the same file."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Stamp, str]] = {}

    def of(self, path: str) -> tuple[str, int]:
        """The digest and size of a file as it is now; OSError where it cannot be read."""
        with open(path, "rb") as file:
            return self.of_file(path, file)

    def of_file(self, path: str, file: BufferedReader) -> tuple[str, int]:
        before = stamp(os.fstat(file.fileno()))
        known = self._known.get(path)
        if known is not None and known[0] == before:
            return known[1], before[0]
        digest = hashlib.file_digest(file, "sha256")
        after = stamp(os.fstat(file.fileno()))
        if after != before:
            raise OSError(f"{path} changed while it was read")
        if time.time_ns() - after[1] > SETTLED_NS:
            self.remember(path, digest.hexdigest(), after)
        return digest.hexdigest(), after[0]

    def known(self, path: str) -> str:
        """The digest of a file unchanged since it was counted, else empty; reads nothing of it."""
        found = self._known.get(path)
        try:
            return found[1] if found and stamp(os.stat(path)) == found[0] else ""
        except OSError:
            return ""

    def remember(self, path: str, sha256: str, at: Stamp) -> None:
        if len(self._known) >= KEPT:
            del self._known[next(iter(self._known))]
        self._known[path] = (at, sha256)

    def forget(self, path: str) -> None:
        self._known.pop(path, None)


def stamp(status: os.stat_result) -> Stamp:
    """What changes with every change of a file. A job can set other times, but not the last."""
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns
