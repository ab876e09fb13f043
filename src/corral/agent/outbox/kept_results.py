"""Ends of attempts that the controller has not received, on this worker's disk: an agent that is
killed while the controller is away delivers them when it is back.

One line each, with its checksum. While the controller hears us nothing is ever written here.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from corral.core.text.malformed import MALFORMED
from corral.home import sync_folder
from corral.protocol.messages import JobCompleted, JobFailed, JobReturned

Ended = JobCompleted | JobFailed | JobReturned

LIMIT_BYTES = 64 << 20
"""Thousands of results: what is larger than 8 kB is not in them, but with the controller."""

KEPT = "unreceived"
"""The file, in the worker's home."""

HEAD_BYTES = 4096
"""Room for the first line, which the limit does not count."""

log = structlog.get_logger("corral.agent.outbox.kept_results")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Ended).decode


class KeptResults:
    """A file that only grows until everything in it was received; then it goes."""

    def __init__(self, path: Path, worker: str, limit: int = LIMIT_BYTES) -> None:
        self._path, self._worker, self._limit = path, worker, limit

    def read(self) -> list[Ended]:
        """What an agent before us left, as far as it came to write; nothing of another worker.
        Whoever reads deletes nothing: its first line may just be on its way."""
        most = self._limit + HEAD_BYTES
        try:
            with self._path.open("rb") as file:
                lines = file.read(most).split(b"\n")
                size = os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return []
        if size > most:  # we never write so much: who did?
            log.warning("kept_results_too_large", path=str(self._path), bytes=size, read=most)
        if _body(lines[0]) != self._worker.encode():
            return []
        found = []
        for line in lines[1:]:
            with suppress(*MALFORMED):
                if (body := _body(line)) is not None:
                    found.append(_decode(body))
        return found

    def add(self, ended: Sequence[Ended]) -> int:
        """Appends; on disk when this returns. How many were written: not all where there would be
        too much of it."""
        if not self._is_ours():
            self.clear()
        room = self._limit - (self._path.stat().st_size if self._path.exists() else 0)
        lines, size = [], 0
        for line in map(_line, map(_encode, ended)):
            size += len(line)
            if size > room:
                break
            lines.append(line)
        if lines:
            self._append(lines)
        return len(lines)

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)

    def _is_ours(self) -> bool:
        try:
            with self._path.open("rb") as file:
                return _body(file.readline(HEAD_BYTES).rstrip(b"\n")) == self._worker.encode()
        except FileNotFoundError:
            return False

    def _append(self, lines: Sequence[bytes]) -> None:
        new = not self._path.exists()
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(fd, "ab") as file:
            # A line that was torn by a crash ends here, and takes no other along.
            file.write(_line(self._worker.encode()) if new else b"\n")
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync_folder(self._path.parent)


def _line(body: bytes) -> bytes:
    return b"%08x %b\n" % (zlib.crc32(body), body)


def _body(line: bytes) -> bytes | None:
    """What the line says, if all of it is there."""
    checksum, _, body = line.partition(b" ")
    return body if checksum == b"%08x" % zlib.crc32(body) else None
