"""A line of the spool and its number; the last one of a segment, where its stream goes on."""

from __future__ import annotations

import os
import re
from pathlib import Path

from corral.core.job import JobId

BLOCK = 4 << 10
"""It is looked for in so much of the segment first."""


Line = tuple[JobId, int, bytes, int, int]
"""Of which attempt, the encoded frame, its number, and how much it adds to the numbers. There are
very many: a class would cost more than the rest."""


_NUMBER = re.compile(rb',"n":([0-9]{1,18})}$')
"""It is the last field of a frame."""


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
    found = _NUMBER.search(line, max(0, len(line) - 32))
    return int(found[1]) if found else 0


def first_line(path: Path) -> bytes:
    """Of a segment, where it has a whole one."""
    with open(path, "rb") as file:
        line = file.readline()
        return line[:-1] if line.endswith(b"\n") else b""


def first_behind(path: Path, number: int) -> int:
    """Where in a segment the first line with a higher number begins, or the segment ends."""
    with open(path, "rb") as file:
        found = high = file.seek(0, os.SEEK_END)
        low = 0
        while low < high:
            middle = (low + high) // 2
            file.seek(max(0, middle - 1))
            if middle:
                file.readline()
            start = file.tell()
            if start >= high:  # no line begins in the upper half
                high = middle
                continue
            line = file.readline()
            if number_of(line.rstrip(b"\n")) > number:
                found, high = start, middle
            else:
                low = start + len(line)
        return found
