"""Many rows of the database at once: as many as a statement binds."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import TypeVar

from corral.controller.history.ended import EndedJob
from corral.controller.journal.record import JournalRecord

KEYS_AT_ONCE = 500
ROWS_AT_ONCE = (100, 10, 1)
Row = JournalRecord | EndedJob
T = TypeVar("T")


def in_marks(values: Sequence[T]) -> Iterator[tuple[Sequence[T], str]]:
    """As many at once as a statement binds, with a mark for each."""
    for first in range(0, len(values), KEYS_AT_ONCE):
        some = values[first : first + KEYS_AT_ONCE]
        yield some, ",".join("?" * len(some))


def insert(connection: sqlite3.Connection, statement: str, rows: Sequence[Row]) -> None:
    """Many rows in one statement, as far as that goes: between two of them a thread has to ask for
    Python's lock, and where the event loop is busy that takes longer than the row."""
    done = 0
    for size in ROWS_AT_ONCE:
        many = _for_rows(statement, size)
        while len(rows) - done >= size:
            connection.execute(many, [*chain.from_iterable(rows[done : done + size])])
            done += size


@cache
def _for_rows(statement: str, size: int) -> str:
    """An INSERT of one row, for several."""
    one = statement[statement.rindex("(") :].rstrip()
    return statement + f", {one}" * (size - 1)
