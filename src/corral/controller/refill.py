"""The history of ended jobs, built anew from the journal: what an older schema did not keep."""

from __future__ import annotations

import sqlite3

from corral.controller import sql
from corral.controller.ended import Ended
from corral.controller.journal import Record
from corral.controller.store import folded
from corral.core.job import Head, JobId
from corral.core.lifecycle import NOTES

GROUP = 1000


def to_2(connection: sqlite3.Connection) -> None:
    """From schema 1 to 2, inside the caller's transaction: the history gets columns to look for
    jobs by."""
    for statement in sql.TO_2.split(";"):
        if statement.strip():
            connection.execute(statement)
    refill_history(connection)


def refill_history(connection: sqlite3.Connection) -> None:
    """Fills the empty table `history` with what the records say, one pass over them."""
    heads: dict[JobId, Head] = {}
    ends: list[Ended] = []
    for row in connection.execute(sql.SCAN):
        record = Record._make(row)
        if not record.job:
            continue
        fact = record.fact()
        head = folded(heads.get(record.job), fact, record.seq)
        if head is None:
            if type(fact) in NOTES:
                _flush(connection, ends)
                connection.execute(sql.NOTED, (record.seq, record.job))
        elif head.state.ended:
            heads.pop(record.job, None)
            ends.append(Ended.of(head, fact))
            if len(ends) >= GROUP:
                _flush(connection, ends)
        else:
            heads[record.job] = head
    _flush(connection, ends)


def _flush(connection: sqlite3.Connection, ends: list[Ended]) -> None:
    connection.executemany(sql.END, ends)
    ends.clear()
