"""A file of JSON lines with one writer: it only grows, by whole lines, each safe before it counts.

A kill in the middle of a write leaves half a line at the end and nothing else; a power cut may
leave zeros there. Whatever lies behind the last whole line was promised to nobody, and is cut.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import structlog

from corral.home import sync_folder

log = structlog.get_logger()

PRIVATE = partial(os.open, mode=0o600)
Whole = Callable[[bytes], bool]
"""Whether a line, without its end, is one of ours."""


class JsonlFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def ends_a_line(self, position: int) -> bool:
        """Whether what is in front of this position can be whole lines."""
        if position == 0:
            return True
        if position > self.size():
            return False
        with self.path.open("rb") as file:
            file.seek(position - 1)
            return file.read(1) == b"\n"

    def mend(self, whole: Whole, known: int = 0) -> int:
        """Cuts what lies behind the last whole line, and ends that line where its end is missing.
        What is in front of `known` is not looked at. Returns the size that is left."""
        good, unended, bad = known, False, 0
        for start, line in self.read(known):
            if not whole(line.rstrip(b"\n")):
                bad += 1
                continue
            good, unended = start + len(line), not line.endswith(b"\n")
        size = self.size()
        if good == size and not unended:
            if bad:
                log.warning("learning_lines_damaged", file=str(self.path), lines=bad)
            return size
        with self.path.open("r+b") as file:
            file.truncate(good)
            if unended:
                file.seek(good)
                file.write(b"\n")
            file.flush()
            os.fsync(file.fileno())
        if good < size:
            log.warning("learning_tail_cut", file=str(self.path), bytes=size - good)
        return good + unended

    def append(self, lines: Sequence[bytes]) -> None:
        """All of them, safe from a power cut when this returns; none where it raises."""
        new = not self.path.exists()
        with open(self.path, "ab", buffering=0, opener=PRIVATE) as file:
            before = os.fstat(file.fileno()).st_size
            try:
                left = memoryview(b"".join(lines))
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(before)
                raise
        if new:
            sync_folder(self.path.parent)

    def read(self, start: int = 0, until: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Each line with its end, as far as it has one, and where it begins."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(start)
            position = start
            for line in file:
                if until is not None and position + len(line) > until:
                    return
                yield position, line
                position += len(line)


def in_chunks(parts: Iterable[bytes], about: int) -> Iterator[bytes]:
    """Many small parts as few large ones: each costs a message and a change of threads."""
    held, size = list[bytes](), 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= about:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)
