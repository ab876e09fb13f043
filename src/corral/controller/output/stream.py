"""One attempt's stream of output: its segment files (where they lie is said in `spool`), the lines
in them, and what is missing while it grows.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import structlog

from corral.core.job import JobId

log = structlog.get_logger()

PRUNED, MORE = "pruned", "more"
"""What a stream's note of its length is called, and the folder of all segments but the first."""
START = re.compile(r"[0-9]{16}")
NAME = re.compile(rf"([^.]+)\.([0-9]+)\.({START.pattern}|{PRUNED}|{MORE})")
BLOCK = 4 << 10
"""The last line is looked for in so much of a segment first."""
Line = tuple[JobId, int, bytes, int, int]
"""Of which attempt, the encoded frame, its number, and how much it adds to the numbers. There are
very many: a class would cost more than the rest."""
_NUMBER = re.compile(rb',"n":([0-9]{1,18})}$')
"""It is the last field of a frame."""
MAX_SEGMENT = 8 << 20
MOST_GAPS, GAP_S = 100, 1.0
"""Gaps of one stream that are told apart, each by a file; then only one in so many seconds."""
UNKEPT = (OSError, MemoryError)
"""No room, no descriptor, no memory, a failing disk: it costs output, and nothing else."""


def stem_in(folder: Path, name: str) -> Path:
    """The stem of a stream: few folders, which are soon all there."""
    return folder / f"by-{name.partition('.')[0][-1:]}" / name


def opened(path: Path) -> int:
    """For appending; its folder is made where it is not there yet, which is rare."""
    how = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    try:
        return os.open(path, how, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, how, 0o600)


def path_of(stem: Path, start: int) -> Path:
    name = f"{start:016d}"
    return stem.parent / f"{stem.name}.{MORE}" / name if start else beside(stem, name)


def beside(stem: Path, part: str) -> Path:
    return stem.with_name(f"{stem.name}.{part}")


def segments_of(stem: Path) -> list[int]:
    """Where its segments begin, in order."""
    found = [0] if path_of(stem, 0).exists() else []
    try:
        names = os.listdir(beside(stem, MORE))
    except FileNotFoundError:
        return found
    return found + sorted(int(name) for name in names if START.fullmatch(name))


def end_of(stem: Path, segments: Sequence[int]) -> int:
    return segments[-1] + path_of(stem, segments[-1]).stat().st_size if segments else 0


def note_length(note: Path, length: int) -> bool:
    """Writes down how long a stream was; False where the disk has no room even for that."""
    try:
        note.write_text(str(length))
        note.chmod(0o600)
    except OSError:
        return False
    return True


def noted_length(stem: Path) -> int:
    """How long a stream was that is gone; 0 where there was none, or nobody knows."""
    try:
        return int(beside(stem, PRUNED).read_bytes())
    except (OSError, ValueError):
        return 0


def taken(path: str, *, counted: bool) -> tuple[int, float]:
    """Bytes of one file or of a folder's files, and when the last of them was written."""
    size, written_at = 0, 0.0
    with contextlib.suppress(FileNotFoundError):
        for one in os.scandir(path) if os.path.isdir(path) else (Path(path),):
            info = one.stat()
            size, written_at = size + info.st_size, max(written_at, info.st_mtime)
    return size if counted else 0, written_at


def covering(segments: list[int], offset: int) -> tuple[int | None, int | None]:
    """The segment that holds `offset`, or the next one if it was dropped, and the one after."""
    first = max(0, bisect_right(segments, offset) - 1)
    start, following = (*segments[first : first + 2], None, None)[:2]
    return start, following


# --- lines ---


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


class Gap(NamedTuple):
    """What is missing at the end of a stream: so many bytes, and all up to this number."""

    lost: int = 0
    upto: int = 0


class Stream:
    def __init__(self, stem: Path, limit: int) -> None:
        self.stem = stem
        self.limit = limit
        self.segment_size = max(4096, min(MAX_SEGMENT, limit // 8))
        self.most_segments = limit // self.segment_size + MOST_GAPS
        self.segments = segments_of(stem)
        self.end = 0
        self.heard: int | None = 0
        """The number of the last line that was heard, here or not; None: its worker numbers
        nothing, or retention took it."""
        self.torn = False
        """A line breaks off at the end: the controller, or its machine, died while it wrote."""
        if self.segments:
            self._find_end()
        self.file: int | None = None
        self.rotated_at = -GAP_S
        self.unwritten = 0
        self.lost = 0
        """Bytes that are missing behind the last line that is here."""

    def _find_end(self) -> None:
        for start in reversed(self.segments):
            size, line, torn = last_line(path_of(self.stem, start))
            if start == self.segments[-1]:
                self.end, self.torn = start + size, torn
            if line:
                number = number_of(line)
                # What is known to be missing was heard, too.
                self.heard = number + self.end - start - size if number else None
                return
        self.heard = None if self.end else 0

    def append(self, line: bytes, n: int = 0, told: int = 0) -> None:
        """Adds a line, once; one that cannot be kept, or never came, leaves nothing but a gap."""
        data = line + b"\n"
        if n:
            if self.heard is not None and n <= self.heard:
                return
            if self.heard is not None:
                self.lost += max(0, n - told - self.heard)
            self.heard = n
        if self.lost and self._has_many_gaps():
            self.lost += told if n else len(data)
            return
        start = self.end + self.lost
        try:
            self._write(data, start)
        except UNKEPT as error:
            if not self.lost:
                log.warning("output_not_kept", stream=self.stem.name, error=str(error))
            self._drop_empty(start)
            self.lost += told if n else len(data)
        else:
            self.end, self.lost = start + len(data), 0

    def _has_many_gaps(self) -> bool:
        """Its worker's numbers lie, or now there is room for a line and now there is none."""
        return len(self.segments) >= self.most_segments and monotonic() - self.rotated_at < GAP_S

    def _write(self, data: bytes, start: int) -> None:
        # Readers are told of a gap where a segment begins behind the end of the one before.
        if not self.segments or self.lost or start - self.segments[-1] >= self.segment_size:
            self._rotate(start)
        if self.file is None:
            self.file = opened(path_of(self.stem, self.segments[-1]))
            if self.torn:
                os.ftruncate(self.file, start - self.segments[-1])
        self.torn = False
        if os.write(self.file, data) < len(data):
            os.ftruncate(self.file, start - self.segments[-1])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.unwritten += len(data)

    def _drop_empty(self, start: int) -> None:
        if self.segments and self.segments[-1] == start:
            self.close()
            with contextlib.suppress(OSError):
                path_of(self.stem, self.segments.pop()).unlink(missing_ok=True)

    def _rotate(self, start: int) -> None:
        self.close()
        self.rotated_at = monotonic()
        self.segments.append(start)
        head = [start for start in self.segments if start < self.limit // 2]
        tail = self.segments[len(head) :]
        while tail and start - tail[0] > self.limit // 2:
            path_of(self.stem, tail.pop(0)).unlink(missing_ok=True)
        self.segments = head + tail
        if len(self.segments) > self.most_segments:
            middle = self.segments.pop(self.most_segments // 2)
            path_of(self.stem, middle).unlink(missing_ok=True)

    def complete(self, number: int) -> None:
        """All numbers up to this one were given: what of them is not here never will be."""
        if self.heard is None or number <= self.heard:
            return
        if self.segments or not noted_length(self.stem):  # or retention took it all, and says so
            self.lost += number - self.heard
            self.heard = number

    def miss(self, gap: Gap) -> None:
        self.lost = gap.lost
        if self.heard is not None:
            self.heard += gap.lost
        self.complete(gap.upto)

    def mark_gap(self) -> None:
        """An empty segment where the stream would have ended: readers are told what is missing."""
        if self.lost:
            os.close(opened(path_of(self.stem, self.end + self.lost)))
            self.lost = 0

    def close(self) -> None:
        file, self.file = self.file, None  # also where closing fails: its number is another's soon
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)
