"""A line of the spool and its number; the last one of a segment, where its stream goes on."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from msgspec import Struct

from corral.core.job import JobId
from corral.core.malformed import MALFORMED

BLOCK = 4 << 10
"""It is looked for in so much of the segment first."""


Line = tuple[JobId, int, bytes, int, int]
"""Of which attempt, the encoded frame, its number, and how much it adds to the numbers. There are
very many: a class would cost more than the rest."""


class _Numbered(Struct):
    n: int = 0


_decode = msgspec.json.Decoder(_Numbered).decode


def last_line(path: Path) -> tuple[int, bytes, bool]:
    """How long a segment is up to the end of its last whole line, that line, and whether another
    breaks off behind it."""
    try:
        with open(path, "rb") as file:
            size, block = file.seek(0, os.SEEK_END), BLOCK
            while True:
                first = max(0, size - block)
                file.seek(first)
                data = file.read(size - first)
                end = data.rfind(b"\n")
                start = data.rfind(b"\n", 0, max(end, 0)) + 1
                if start or not first:
                    return first + end + 1, data[start : max(end, 0)], end + 1 < len(data)
                block *= 16
    except FileNotFoundError:
        return 0, b"", False


def number_of(line: bytes) -> int:
    """0 where there is none."""
    try:
        return _decode(line).n
    except MALFORMED:
        return 0


def whole_before(path: Path, offset: int, *, last: bool) -> int:
    """`offset`, where a line of the segment ends, or the segment ends before it and is not the
    `last`; otherwise the end of its lines, or its beginning where other lines lie there."""
    size, _, _ = last_line(path)
    if offset > size:
        return size if last else offset
    with open(path, "rb") as file:
        file.seek(offset - 1)
        return offset if file.read(1) == b"\n" else 0
