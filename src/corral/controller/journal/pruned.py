"""Numbers of records that were removed on purpose, as few intervals as there can be.

The journal proves itself by numbers without gaps. Pruning makes gaps, so each is written down in
the transaction that makes it, with a checksum: a gap that no interval explains is damage as ever.
"""

from __future__ import annotations

import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from corral.controller.history.ended import EndedJob
from corral.controller.journal import sql
from corral.controller.journal.record import JournalRecord
from corral.core.errors import JournalDamaged


class Interval(NamedTuple):
    first: int
    last: int
    crc: int

    def intact(self) -> bool:
        try:
            return self.crc == _checksum(self.first, self.last) and 0 < self.first <= self.last
        except (TypeError, ValueError):  # a flipped bit may change a column's very type
            return False


def interval(first: int, last: int) -> Interval:
    return Interval(first, last, _checksum(first, last))


def _checksum(first: int, last: int) -> int:
    return zlib.crc32(f"pruned|{first}|{last}".encode())


def runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Neighbours together: 3, 4, 9 are (3, 4) and (9, 9)."""
    first = last = 0
    for number in sorted(numbers):
        if first and number == last + 1:
            last = number
            continue
        if first:
            yield first, last
        first = last = number
    if first:
        yield first, last


def note_run(connection: sqlite3.Connection, first: int, last: int) -> None:
    """Writes these numbers down as pruned: one interval, joined with those beside it."""
    before = _found(connection, sql.PRUNED_UNTIL, last)
    behind = _found(connection, sql.PRUNED_FROM, last + 1)
    if before is not None and before.last >= first:
        raise damaged(f"it has {first} to {last} already, which were there")
    if before is not None and before.last == first - 1:
        first = before.first
    if behind is not None:
        connection.execute(sql.UNPRUNE, (behind.first,))
        last = behind.last
    connection.execute(sql.PRUNED, interval(first, last))


def _found(connection: sqlite3.Connection, query: str, number: int) -> Interval | None:
    row = connection.execute(query, (number,)).fetchone()
    if row is None:
        return None
    found = Interval._make(row)
    if not found.intact():
        # Joined with another it would get a new checksum, and the damage would be hidden.
        raise damaged(f"the interval from {found.first} has a wrong checksum")
    return found


def covers(connection: sqlite3.Connection, number: int) -> bool:
    found = _found(connection, sql.PRUNED_UNTIL, number)
    return found is not None and number <= found.last


def damaged(reason: str) -> JournalDamaged:
    return JournalDamaged(
        f"The journal's list of pruned records is damaged ({reason}), so nothing says whether "
        "other records are lost. Nothing was changed. Restore a backup, or run `corral repair` to "
        "go on with what is intact."
    )


class Slice(NamedTuple):
    """What one transaction pruned: how many jobs it looked at, and those it had to leave."""

    jobs: int
    records: int
    damaged: list[str]


def remove(connection: sqlite3.Connection, jobs: Sequence[str], within_s: float) -> Slice:
    """Ended jobs, their records, and a note of the numbers, in one transaction. A job whose
    records are damaged stays as it is, for the next start to see."""
    deadline = time.monotonic() + within_s
    done, numbers, broken = 0, list[int](), list[str]()
    connection.execute("BEGIN IMMEDIATE")
    try:
        for job in jobs:
            done += 1
            try:
                story = _story(connection, job)
            except JournalDamaged:
                broken.append(job)
                continue
            connection.executemany(sql.DELETE_RECORD, ((number,) for number in story))
            connection.execute(sql.DELETE_ENDED, (job,))
            numbers += story
            if time.monotonic() > deadline:
                break
        for first, last in runs(numbers):
            note_run(connection, first, last)
        connection.execute("COMMIT")
    except JournalDamaged:
        connection.execute("ROLLBACK")
        raise
    return Slice(done, len(numbers), broken)


def _story(connection: sqlite3.Connection, job: str) -> list[int]:
    """The numbers of all records of an ended job, each record proven."""
    found = connection.execute(sql.ENDED_JOB, (job,)).fetchone()
    numbers = []
    seq = EndedJob._make(found).last_seq if found else 0
    while seq:
        record = JournalRecord.of(connection.execute(sql.RECORD, (seq,)).fetchone())
        if record is None or record.job != job:
            raise JournalDamaged(f"Record {seq} of the journal is damaged. Run `corral repair`.")
        numbers.append(seq)
        seq = record.prev
    return numbers


class Gaps:
    """The proven intervals behind `after`; those before it may have grown since it was counted."""

    def __init__(self, intervals: Iterable[Interval], after: int = 0) -> None:
        self._behind: dict[int, int] = {}
        end = -1
        for found in intervals:
            if not found.intact() or found.first <= end + 1:
                raise damaged(f"the interval from {found.first} cannot be")
            end = found.last
            if end > after:
                self._behind[max(found.first, after + 1)] = end + 1
        self.unused = set(self._behind)
        """Intervals that nobody came by yet; proven records leave none."""

    def skipped(self, number: int) -> int:
        """The number itself, or the one behind the interval that begins with it."""
        self.unused.discard(number)
        return self._behind.get(number, number)
