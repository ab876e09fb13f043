"""What attempts printed and told, in segment files that any number of readers follow by offset.

A segment's name says where in the stream it begins. Past the limit the head stays, the tail
moves on, and readers are told how much is missing between them. A stream's first segment is a file
beside those of other jobs, the others lie in a folder of the stream's own: whoever looks for them
reads no folder that grows with the history.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import structlog

from corral.controller.output.stream import (
    NAME,
    PRUNED,
    UNKEPT,
    Gap,
    Line,
    Stream,
    beside,
    covering,
    end_of,
    first_behind,
    first_line,
    last_line,
    note_length,
    noted_length,
    number_of,
    path_of,
    segments_of,
    stem_in,
    taken,
)
from corral.core.errors import StorageFailed
from corral.core.job import JobId

log = structlog.get_logger()

OPEN_FILES = 256
READ = 256 << 10
SMOOTH = 2 << 20
"""Much output goes to the disk in pieces of this size, and not when somebody waits for a commit."""
TAIL = 64 << 10
MARKS_AT_ONCE = 16


class Piece(NamedTuple):
    """Whole lines from the stream, and where it goes on behind them."""

    lines: list[bytes]
    next_offset: int
    skipped: int = 0


class StoredOutput(NamedTuple):
    """What a job's streams take on the disk, when the last of it was written, and by whom."""

    size: int = 0
    written_at: float = 0.0
    attempts: frozenset[int] = frozenset()


class Spool:
    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._open: OrderedDict[tuple[JobId, int], Stream] = OrderedDict()
        self._lock = Lock()
        """Held while streams are written or put away, which another thread may do."""
        self._gaps: dict[tuple[JobId, int], Gap] = {}
        """Of streams that are not open: not on the disk yet, because nothing could be written."""
        self.received = 0
        """Bytes of frames since the start."""

    def append(self, job: JobId, attempt: int, line: bytes, n: int = 0, told: int = 0) -> None:
        """Adds one frame; nothing here is synced, output may lose its last moments in a power
        cut, jobs and results never. It never raises: what cannot be kept is a gap."""
        self.received += len(line)
        with self._lock:
            stream = self._open.get((job, attempt)) or self._start(
                job, attempt, Gap(upto=n) if n else Gap(lost=len(line) + 1)
            )
            if stream is not None:
                stream.append(line, n, told)

    def told(self, job: JobId, attempt: int) -> int:
        """The number of the last line of a stream, kept or known to be missing; 0: nobody knows."""
        with self._lock, contextlib.suppress(*UNKEPT):
            stream = self._open.get((job, attempt)) or self._found(job, attempt)
            return stream.heard or 0
        return 0

    def unopened(self, lines: Iterable[Line]) -> int:
        return len({line[:2] for line in lines} - self._open.keys())

    def extend(self, lines: Iterable[Line]) -> None:
        for job, attempt, line, n, told in lines:
            self.append(job, attempt, line, n, told)

    def extend_smoothly(self, lines: Sequence[Line]) -> None:
        """The same for very much, in a thread of its own: what gathers is brought to the disk, or
        the file system would do so when the journal's next fsync waits for it."""
        self.extend(lines)
        for key in {line[:2] for line in lines}:
            stream = self._open.get(key)
            if stream is not None and stream.unwritten > SMOOTH and stream.file is not None:
                stream.unwritten = 0
                with contextlib.suppress(OSError):
                    os.fsync(stream.file)

    def _start(self, job: JobId, attempt: int, gap: Gap) -> Stream | None:
        """None where that cannot be: then there is this gap."""
        try:
            stream = self._open[job, attempt] = self._found(job, attempt)
        except UNKEPT as error:
            self._miss(job, attempt, gap, error)
            return None
        self._gaps.pop((job, attempt), None)
        if len(self._open) > OPEN_FILES:
            key, oldest = self._open.popitem(last=False)
            self._put_away(key, oldest)
        return stream

    def _found(self, job: JobId, attempt: int) -> Stream:
        """As it is on the disk, and what is known to be missing behind that."""
        stream = Stream(self._stem(job, attempt), self.limit)
        stream.miss(self._gaps.get((job, attempt), Gap()))
        return stream

    def _put_away(self, key: tuple[JobId, int], stream: Stream) -> None:
        stream.close()
        if stream.lost:
            self._gaps[key] = Gap(stream.lost)

    def _miss(self, job: JobId, attempt: int, gap: Gap, error: Exception) -> None:
        before = self._gaps.get((job, attempt))
        if before is None:
            log.warning("output_not_kept", stream=f"{job}.{attempt}", error=str(error))
            before = Gap()
        self._gaps[job, attempt] = Gap(before.lost + gap.lost, max(before.upto, gap.upto))

    def complete(self, job: JobId, attempt: int, number: int) -> None:
        """The attempt has ended, and this was its last number: what is missing is marked. Told
        again, it changes nothing."""
        with self._lock:
            gap = Gap(upto=number)
            stream = self._open.get((job, attempt)) or self._start(job, attempt, gap)
            if stream is not None:
                stream.complete(number)

    def finish(self, job: JobId, attempt: int) -> None:
        with self._lock:
            stream = self._open.pop((job, attempt), None)
            if stream is not None:
                self._put_away((job, attempt), stream)
            if self._gaps:
                self._mark_gaps()

    def _mark_gaps(self) -> None:
        """Written down as soon as that works again; until then `read` tells of them."""
        for key in list(islice(self._gaps, MARKS_AT_ONCE)):
            try:
                self._found(*key).mark_gap()
            except UNKEPT:
                return
            del self._gaps[key]

    def read(self, job: JobId, attempt: int, offset: int, about: int = READ) -> Piece:
        """Some whole lines behind `offset`, at least one; none at the end of the stream. Raises
        StorageFailed where it cannot be read now."""
        try:
            piece = self._read(job, attempt, offset, about)
            return piece if piece.lines or piece.skipped else self._missing(job, attempt, piece)
        except UNKEPT as error:
            raise StorageFailed(
                f"The output of job {job} cannot be read now ({error}). Ask again later."
            ) from error

    def _missing(self, job: JobId, attempt: int, piece: Piece) -> Piece:
        """What is missing at the end of a stream, and only known here so far."""
        stream = self._open.get((job, attempt))
        if stream is None and (job, attempt) in self._gaps:
            stream = self._found(job, attempt)
        if stream is None:
            return piece
        end, lost = stream.end, stream.lost
        if piece.next_offset < end or end < stream.end:
            return piece  # another thread has written more since it was read
        end += lost
        return Piece([], max(piece.next_offset, end), max(0, end - piece.next_offset))

    def _read(self, job: JobId, attempt: int, offset: int, about: int) -> Piece:
        stem = self._stem(job, attempt)
        open_stream = self._open.get((job, attempt))
        segments = open_stream.segments if open_stream else segments_of(stem)
        start, following = covering(segments, offset)
        if start is None:
            end = max(offset, noted_length(stem))
            return Piece([], end, end - offset)
        try:
            with open(path_of(stem, start), "rb") as file:
                skipped = max(0, start - offset)
                offset = max(offset, start)
                file.seek(offset - start)
                data = file.read(about)
                while data and not data.endswith(b"\n") and (more := file.readline()):
                    data += more
        except FileNotFoundError:
            return Piece([], offset)
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and following is not None and following > offset:
            again = self._read(job, attempt, following, about)
            return again._replace(skipped=again.skipped + following - offset)
        lines = whole[:-1].split(b"\n") if whole else []
        return Piece(lines, offset + len(whole), skipped)

    def end(self, job: JobId, attempt: int) -> int | None:
        """Where a stream ends that is being written; None: nothing is, or not just now."""
        stream = self._open.get((job, attempt))
        return None if stream is None else stream.end

    def place(self, job: JobId, attempt: int, number: int) -> int:
        """Where a reader goes on that has seen all up to this number: not behind the next line,
        whatever a power cut took. Without numbers it is the place itself."""
        stem = self._stem(job, attempt)
        with contextlib.suppress(*UNKEPT):
            segments = segments_of(stem)
            first = first_line(path_of(stem, segments[0])) if segments else b""
            if noted_length(stem) if not segments else first and not number_of(first):
                return number
            for start in reversed(segments):
                if 0 < number_of(first_line(path_of(stem, start))) <= number:
                    return start + first_behind(path_of(stem, start), number)
        return 0

    def told_before(self, job: JobId, attempt: int, offset: int) -> int | None:
        """How much an attempt had told where only a gap follows; None where nobody knows."""
        stem = self._stem(job, attempt)
        with contextlib.suppress(*UNKEPT):
            segments = segments_of(stem)
            for start in reversed([start for start in segments if start <= offset]):
                size, line, _ = last_line(path_of(stem, start))
                if line:
                    number = number_of(line)
                    return number + offset - start - size if number else None
            return None if noted_length(stem) else offset
        return None

    def tail(self, job: JobId, attempt: int) -> list[bytes]:
        """The last whole lines of a stream, as many as one read gives."""
        stem = self._stem(job, attempt)
        with contextlib.suppress(*UNKEPT):
            segments = segments_of(stem)
            if not segments:
                return []
            with open(path_of(stem, segments[-1]), "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - TAIL))
                lines = file.read().split(b"\n")
                return lines[1 if size > TAIL else 0 : -1]
        return []

    # --- removing what retention no longer keeps ---

    def stored(self) -> dict[JobId, StoredOutput]:
        """What each job's streams take on the disk; any thread may ask."""
        found: dict[JobId, StoredOutput] = {}
        for folder in self.folder.iterdir():
            for entry in os.scandir(folder) if folder.is_dir() else ():
                name = NAME.fullmatch(entry.name)
                if name is None:
                    continue  # whatever else somebody put there is not ours to remove
                job, attempt, part = name.groups()
                before = found.get(job, StoredOutput())
                size, written_at = taken(entry.path, counted=part != PRUNED)
                found[job] = StoredOutput(
                    before.size + size,
                    max(before.written_at, written_at),
                    before.attempts | {int(attempt)},
                )
        return found

    def prune(self, job: JobId, attempts: Iterable[int], *, noted: bool) -> None:
        """Drops what these attempts of an ended job wrote. `noted`: a file stays that says how long
        each stream was, so that readers are told how much is missing."""
        for attempt in attempts:
            stem = self._stem(job, attempt)
            segments = segments_of(stem)
            note = beside(stem, PRUNED)
            length = end_of(stem, segments)
            written = not (noted and segments) or note_length(note, length)
            for start in segments:
                path_of(stem, start).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                path_of(stem, 1).parent.rmdir()
            if not written:
                note_length(note, length)  # there was no room for it before
            if not noted:
                note.unlink(missing_ok=True)

    def close(self) -> None:
        while self._open:
            self._put_away(*self._open.popitem())
        left = -1
        while left != len(self._gaps):
            left = len(self._gaps)
            self._mark_gaps()

    def _stem(self, job: JobId, attempt: int) -> Path:
        return stem_in(self.folder, f"{job}.{attempt}")
