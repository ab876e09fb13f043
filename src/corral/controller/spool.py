"""What attempts printed and told, in segment files that any number of readers follow by offset.

A segment's name says where in the stream it begins. Past the limit the head stays, the tail
moves on, and readers are told how much is missing between them. A stream's first segment is a file
beside those of other jobs, the others lie in a folder of the stream's own: whoever looks for them
reads no folder that grows with the history.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import structlog

from corral.core.errors import StorageFailed
from corral.core.job import JobId

log = structlog.get_logger()

MAX_SEGMENT = 8 << 20
OPEN_FILES = 128
READ = 256 << 10
SMOOTH = 2 << 20
"""Much output goes to the disk in pieces of this size, and not when somebody waits for a commit."""
TAIL = 64 << 10
MARKS_AT_ONCE = 16
UNKEPT = (OSError, MemoryError)
"""No room, no descriptor, no memory, a failing disk: it costs output, and nothing else."""
PRUNED, MORE = "pruned", "more"
"""What a stream's note of its length is called, and the folder of all segments but the first."""
_START = re.compile(r"[0-9]{16}")
_NAME = re.compile(rf"([^.]+)\.([0-9]+)\.({_START.pattern}|{PRUNED}|{MORE})")


class Piece(NamedTuple):
    """Whole lines from the stream, and where it goes on behind them."""

    lines: list[bytes]
    next_offset: int
    skipped: int = 0


class Kept(NamedTuple):
    """What a job's streams take on the disk, when the last of it was written, and by whom."""

    size: int = 0
    written_at: float = 0.0
    attempts: frozenset[int] = frozenset()


class _Stream:
    """One attempt's stream while it grows."""

    def __init__(self, stem: Path, limit: int) -> None:
        self.stem = stem
        self.limit = limit
        self.segment_size = max(4096, min(MAX_SEGMENT, limit // 8))
        self.segments = _segments(stem)
        self.end = _end(stem, self.segments)
        self.file: int | None = None
        self.unwritten = 0
        self.lost = 0
        """Bytes that could not be kept since the last line that was."""

    def append(self, line: bytes) -> None:
        """Adds a line; one that cannot be kept leaves nothing but a gap."""
        data = line + b"\n"
        start = self.end + self.lost
        try:
            self._write(data, start)
        except UNKEPT as error:
            if not self.lost:
                log.warning("output_not_kept", stream=self.stem.name, error=str(error))
            self._drop_empty(start)
            self.lost += len(data)
        else:
            self.end, self.lost = start + len(data), 0

    def _write(self, data: bytes, start: int) -> None:
        # Readers are told of a gap where a segment begins behind the end of the one before.
        if not self.segments or self.lost or start - self.segments[-1] >= self.segment_size:
            self._rotate(start)
        if self.file is None:
            self.file = _opened(_path(self.stem, self.segments[-1]))
        if os.write(self.file, data) < len(data):
            os.ftruncate(self.file, start - self.segments[-1])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.unwritten += len(data)

    def _drop_empty(self, start: int) -> None:
        if self.segments and self.segments[-1] == start:
            self.close()
            with contextlib.suppress(OSError):
                _path(self.stem, self.segments.pop()).unlink(missing_ok=True)

    def _rotate(self, start: int) -> None:
        self.close()
        self.segments.append(start)
        head = [start for start in self.segments if start < self.limit // 2]
        tail = self.segments[len(head) :]
        while tail and start - tail[0] > self.limit // 2:
            _path(self.stem, tail.pop(0)).unlink(missing_ok=True)
        self.segments = head + tail

    def mark_gap(self) -> None:
        """An empty segment where the stream would have ended: readers are told what is missing."""
        if self.lost:
            os.close(_opened(_path(self.stem, self.end + self.lost)))
            self.lost = 0

    def close(self) -> None:
        file, self.file = self.file, None  # also where closing fails: its number is another's soon
        if file is not None:
            with contextlib.suppress(OSError):
                os.close(file)


class Spool:
    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._open: OrderedDict[tuple[JobId, int], _Stream] = OrderedDict()
        self._gaps: dict[tuple[JobId, int], int] = {}
        """Bytes missing at the end of streams that are not open: nothing on the disk says so yet,
        because nothing could be written or no file opened."""
        self.received = 0
        """Bytes of frames since the start."""
        for older in (*folder.glob("?"), *folder.glob("??")):  # as it was before 0.1 was released
            _spread(older, folder)

    def append(self, job: JobId, attempt: int, line: bytes) -> None:
        """Adds one frame; nothing here is synced, output may lose its last moments in a power
        cut, jobs and results never. It never raises: what cannot be kept is a gap."""
        self.received += len(line)
        stream = self._open.get((job, attempt))
        if stream is None:
            try:
                stream = self._start(job, attempt)
            except UNKEPT as error:
                self._miss(job, attempt, len(line) + 1, error)
                return
        stream.append(line)

    def extend(self, lines: Iterable[tuple[JobId, int, bytes]]) -> None:
        for job, attempt, line in lines:
            self.append(job, attempt, line)

    def extend_smoothly(self, lines: Sequence[tuple[JobId, int, bytes]]) -> None:
        """The same for very much, in a thread of its own: what gathers is brought to the disk, or
        the file system would do so when the journal's next fsync waits for it."""
        self.extend(lines)
        for key in {(job, attempt) for job, attempt, _ in lines}:
            stream = self._open.get(key)
            if stream is not None and stream.unwritten > SMOOTH and stream.file is not None:
                stream.unwritten = 0
                with contextlib.suppress(OSError):
                    os.fsync(stream.file)

    def _start(self, job: JobId, attempt: int) -> _Stream:
        stem = self._stem(job, attempt)
        stream = self._open[job, attempt] = _Stream(stem, self.limit)
        stream.lost = self._gaps.pop((job, attempt), 0)
        if len(self._open) > OPEN_FILES:
            key, oldest = self._open.popitem(last=False)
            self._put_away(key, oldest)
        return stream

    def _put_away(self, key: tuple[JobId, int], stream: _Stream) -> None:
        stream.close()
        if stream.lost:
            self._gaps[key] = stream.lost

    def _miss(self, job: JobId, attempt: int, size: int, error: Exception) -> None:
        if (job, attempt) not in self._gaps:
            log.warning("output_not_kept", stream=f"{job}.{attempt}", error=str(error))
        self._gaps[job, attempt] = self._gaps.get((job, attempt), 0) + size

    def finish(self, job: JobId, attempt: int) -> None:
        stream = self._open.pop((job, attempt), None)
        if stream is not None:
            self._put_away((job, attempt), stream)
        if self._gaps:
            self._mark_gaps()

    def _mark_gaps(self) -> None:
        """Written down as soon as that works again; until then `read` tells of them."""
        for key in list(islice(self._gaps, MARKS_AT_ONCE)):
            try:
                stream = _Stream(self._stem(*key), self.limit)
                stream.lost = self._gaps[key]
                stream.mark_gap()
            except UNKEPT:
                return
            del self._gaps[key]

    def read(self, job: JobId, attempt: int, offset: int) -> Piece:
        """Some whole lines behind `offset`; none at the end of the stream. Raises StorageFailed
        where it cannot be read now."""
        try:
            piece = self._read(job, attempt, offset)
            return piece if piece.lines or piece.skipped else self._missing(job, attempt, piece)
        except UNKEPT as error:
            raise StorageFailed(
                f"The output of job {job} cannot be read now ({error}). Ask again later."
            ) from error

    def _missing(self, job: JobId, attempt: int, piece: Piece) -> Piece:
        """What is missing at the end of a stream, and only known here so far."""
        stream, lost = self._open.get((job, attempt)), self._gaps.get((job, attempt), 0)
        if stream is None and lost:
            stream = _Stream(self._stem(job, attempt), self.limit)
        if stream is None:
            return piece
        end = stream.end + stream.lost + lost
        return Piece([], max(piece.next_offset, end), max(0, end - piece.next_offset))

    def _read(self, job: JobId, attempt: int, offset: int) -> Piece:
        stem = self._stem(job, attempt)
        open_stream = self._open.get((job, attempt))
        segments = open_stream.segments if open_stream else _segments(stem)
        start, following = _covering(segments, offset)
        if start is None:
            end = max(offset, _length_noted(stem))
            return Piece([], end, end - offset)
        try:
            with open(_path(stem, start), "rb") as file:
                skipped = max(0, start - offset)
                offset = max(offset, start)
                file.seek(offset - start)
                data = file.read(READ)
                while data and not data.endswith(b"\n") and (more := file.readline()):
                    data += more
        except FileNotFoundError:
            return Piece([], offset)
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and following is not None and following > offset:
            again = self._read(job, attempt, following)
            return again._replace(skipped=again.skipped + following - offset)
        lines = whole[:-1].split(b"\n") if whole else []
        return Piece(lines, offset + len(whole), skipped)

    def tail(self, job: JobId, attempt: int) -> list[bytes]:
        """The last whole lines of a stream, as many as one read gives."""
        stem = self._stem(job, attempt)
        with contextlib.suppress(*UNKEPT):
            segments = _segments(stem)
            if not segments:
                return []
            with open(_path(stem, segments[-1]), "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - TAIL))
                lines = file.read().split(b"\n")
                return lines[1 if size > TAIL else 0 : -1]
        return []

    # --- removing what retention no longer keeps ---

    def stored(self) -> dict[JobId, Kept]:
        """What each job's streams take on the disk; any thread may ask."""
        found: dict[JobId, Kept] = {}
        for folder in self.folder.iterdir():
            for entry in os.scandir(folder) if folder.is_dir() else ():
                name = _NAME.fullmatch(entry.name)
                if name is None:
                    continue  # whatever else somebody put there is not ours to remove
                job, attempt, part = name.groups()
                before = found.get(job, Kept())
                size, written_at = _taken(entry.path, counted=part != PRUNED)
                found[job] = Kept(
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
            segments = _segments(stem)
            note = _beside(stem, PRUNED)
            length = _end(stem, segments)
            written = not (noted and segments) or _noted(note, length)
            for start in segments:
                _path(stem, start).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                _path(stem, 1).parent.rmdir()
            if not written:
                _noted(note, length)  # there was no room for it before
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
        return _in(self.folder, f"{job}.{attempt}")


def _in(folder: Path, name: str) -> Path:
    """The stem of a stream: few folders, which are soon all there."""
    return folder / f"by-{name.partition('.')[0][-1:]}" / name


def _spread(older: Path, folder: Path) -> None:
    """Brings segments to where they are looked for: once all of a stream lay side by side, and an
    empty one alone was the note of what was pruned."""
    for path in sorted(older.iterdir()):
        name = _NAME.fullmatch(path.name)
        if name is None or not _START.fullmatch(name[3]):
            continue
        stem, start = _in(folder, f"{name[1]}.{name[2]}"), int(name[3])
        stem.parent.mkdir(exist_ok=True)
        if start and not path.stat().st_size and not _segments(stem):
            _noted(_beside(stem, PRUNED), start)
            path.unlink()
            continue
        place = _path(stem, start)
        place.parent.mkdir(exist_ok=True)
        path.rename(place)
    with contextlib.suppress(OSError):  # somebody's own files stay
        older.rmdir()


def _opened(path: Path) -> int:
    """For appending; its folder is made where it is not there yet, which is rare."""
    how = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    try:
        return os.open(path, how, 0o600)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, how, 0o600)


def _path(stem: Path, start: int) -> Path:
    name = f"{start:016d}"
    return stem.parent / f"{stem.name}.{MORE}" / name if start else _beside(stem, name)


def _beside(stem: Path, part: str) -> Path:
    return stem.with_name(f"{stem.name}.{part}")


def _segments(stem: Path) -> list[int]:
    """Where its segments begin, in order."""
    found = [0] if _path(stem, 0).exists() else []
    try:
        names = os.listdir(_beside(stem, MORE))
    except FileNotFoundError:
        return found
    return found + sorted(int(name) for name in names if _START.fullmatch(name))


def _end(stem: Path, segments: Sequence[int]) -> int:
    return segments[-1] + _path(stem, segments[-1]).stat().st_size if segments else 0


def _noted(note: Path, length: int) -> bool:
    """Writes down how long a stream was; False where the disk has no room even for that."""
    try:
        note.write_text(str(length))
        note.chmod(0o600)
    except OSError:
        return False
    return True


def _length_noted(stem: Path) -> int:
    """How long a stream was that is gone; 0 where there was none, or nobody knows."""
    try:
        return int(_beside(stem, PRUNED).read_bytes())
    except (OSError, ValueError):
        return 0


def _taken(path: str, *, counted: bool) -> tuple[int, float]:
    """Bytes of one file or of a folder's files, and when the last of them was written."""
    size, written_at = 0, 0.0
    with contextlib.suppress(FileNotFoundError):
        for one in os.scandir(path) if os.path.isdir(path) else (Path(path),):
            info = one.stat()
            size, written_at = size + info.st_size, max(written_at, info.st_mtime)
    return size if counted else 0, written_at


def _covering(segments: list[int], offset: int) -> tuple[int | None, int | None]:
    """The segment that holds `offset`, or the next one if it was dropped, and the one after."""
    found = None
    for index, start in enumerate(segments):
        following = segments[index + 1] if index + 1 < len(segments) else None
        if start <= offset:
            found = (start, following)
        elif found is None:
            return start, following
    return found or (None, None)
