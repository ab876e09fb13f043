"""Marks in a pipe of output: they show where the output of an attempt begins and where it ends.

A pipe cannot be asked in the same way on every system how much it holds. With a mark as the last
thing that an attempt writes, whoever reads it has read everything before.
"""

from __future__ import annotations

from collections.abc import Iterator

BEGIN, END = b"<", b">"


class Marks:
    """The reader's side. What lies outside of an attempt belongs to nobody and is left out."""

    def __init__(self, mark: bytes) -> None:
        self._mark = b"\0" + mark
        self._inside = False
        self._held = b""

    def parts(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Output in its order; True with the last of an attempt, which may be empty."""
        data = self._held + data
        size = len(self._mark)
        while (at := data.find(self._mark)) >= 0 and len(data) > at + size:
            before, kind, data = data[:at], data[at + size : at + size + 1], data[at + size + 1 :]
            if kind == END and self._inside:
                yield before, True
            self._inside = kind == BEGIN
        keep = self._begun(data)
        self._held = data[len(data) - keep :]
        if self._inside and len(data) > keep:
            yield data[: len(data) - keep], False

    def rest(self) -> bytes:
        """What was held back because it could have become a mark."""
        rest, self._held = self._held if self._inside else b"", b""
        return rest

    def _begun(self, data: bytes) -> int:
        """How many bytes at the end may be the beginning of a mark."""
        at = data.rfind(b"\0", max(len(data) - len(self._mark), 0))
        while at >= 0:
            if self._mark.startswith(data[at:]):
                return len(data) - at
            at = data.rfind(b"\0", max(len(data) - len(self._mark), 0), at)
        return 0


def written(mark: bytes, kind: bytes) -> bytes:
    return b"\0" + mark + kind
