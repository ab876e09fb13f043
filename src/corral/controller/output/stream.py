"""One attempt's stream of output while it grows: its segments, and what is missing in it."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import structlog

from corral.controller.output.files import noted_length, opened, path_of, segments_of
from corral.controller.output.lines import last_line, number_of

log = structlog.get_logger()

MAX_SEGMENT = 8 << 20
MOST_GAPS, GAP_S = 100, 1.0
"""About so many of one stream are told apart, each of which begins a file; after those, one in so
many seconds."""
UNKEPT = (OSError, MemoryError)
"""No room, no descriptor, no memory, a failing disk: it costs output, and nothing else."""


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
