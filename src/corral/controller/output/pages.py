"""What watchers see, and where they are: a cursor, one thing seen, a page of output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from corral.controller.output.spool import Piece
from corral.controller.output.stream import number_of
from corral.core.errors import InvalidJob
from corral.core.events import Journaled
from corral.core.frames import decode_frame
from corral.core.job import JobId


class Cursor(NamedTuple):
    """Behind which record, and where in the output of which attempt."""

    seq: int = 0
    attempt: int = 0
    number: int = 0
    """Of the last line that was seen, where its worker numbers output; else where it ends."""

    @classmethod
    def parse(cls, text: str) -> Cursor:
        try:
            cursor = cls(*(int(part) for part in text.split("."))) if text else cls()
            if not all(0 <= part < 1 << 53 for part in cursor):
                raise ValueError(text)
            return cursor
        except (ValueError, TypeError):
            raise InvalidJob(
                f"{text[:80]!r} is no cursor; use one that an event carried."
            ) from None

    def __str__(self) -> str:
        return f"{self.seq}.{self.attempt}.{self.number}"


class Seen(NamedTuple):
    """One thing a watcher sees: a fact, a line of the spool, or a gap in the output."""

    job: JobId
    cursor: Cursor
    attempt: int
    fact: Journaled | None = None
    frame: bytes = b""
    skipped: int = 0


class Page(Sequence[Seen]):
    """Output that watchers at the same place see next, as lines of the spool: what is made of
    them for one, others find under `encoded`."""

    def __init__(self, job: JobId, cursor: Cursor, offset: int, piece: Piece) -> None:
        self.job, self.cursor, self.piece = job, cursor, piece
        self.offset = offset
        """Where in the spool it begins."""
        self.encoded: dict[str, Any] = {}

    @property
    def size(self) -> int:
        return self.end - self.offset - self.piece.skipped

    @property
    def end(self) -> int:
        return self.piece.next_offset

    @property
    def number(self) -> int:
        """For the cursor of whoever has seen it."""
        if not self.piece.lines:
            return self.cursor.number + self.piece.skipped
        return number_of(self.piece.lines[-1]) or self.end

    def __len__(self) -> int:
        return len(self.piece.lines) + bool(self.piece.skipped)

    def __iter__(self) -> Iterator[Seen]:
        job, attempt, lines = self.job, self.cursor.attempt, self.piece.lines
        skipped = self.piece.skipped
        offset = self.offset + skipped
        if skipped:
            number = (before(lines[0]) or offset) if lines else self.number
            yield Seen(job, self.cursor._replace(number=number), attempt, skipped=skipped)
        for line in lines:
            offset += len(line) + 1
            number = number_of(line) or offset
            yield Seen(job, self.cursor._replace(number=number), attempt, frame=line)

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def unseen(self, number: int, told: int | None) -> Page | None:
        """Less than all of it only for a reader that had seen more: lines that a power cut took
        and that were sent again, or the gap at the end. `told`: the number before the page."""
        lines, end, skipped = self.piece
        first = number_of(lines[0]) if lines else 0
        if not first and (lines or told is None):
            return self
        if not lines:
            assert told is not None
            skipped = max(0, min(skipped, told + skipped - number))
        elif first <= number:
            lines, skipped = [line for line in lines if number_of(line) > number], 0
        elif skipped:
            skipped = max(0, min(skipped, before(lines[0]) - number))
        if len(lines) == len(self.piece.lines) and skipped == self.piece.skipped:
            return self
        start = end - skipped - sum(len(line) + 1 for line in lines)
        piece = Piece(lines, end, skipped)
        return Page(self.job, self.cursor, start, piece) if lines or skipped else None


def before(line: bytes) -> int:
    """How much its attempt had told before this line; 0 where nobody knows."""
    frame = decode_frame(line)
    return frame.n - frame.told if frame is not None and frame.n else 0
