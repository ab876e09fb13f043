"""The history of ended jobs, built anew from the journal: what an older schema did not keep."""

from __future__ import annotations

import sqlite3

from corral.controller import sql
from corral.controller.ended import Ended
from corral.controller.record import Record
from corral.core.events import JobRejected, JobSubmitted
from corral.core.job import Head, JobId
from corral.core.lifecycle import NOTES, advance, born

GROUP = 1000


def refill_history(connection: sqlite3.Connection) -> None:
    """Fills the empty table `history` with what the records say, one pass over them."""
    heads: dict[JobId, Head] = {}
    ends: list[Ended] = []
    for row in connection.execute(sql.SCAN):
        record = Record._make(row)
        if not record.job:
            continue
        fact = record.fact()
        known = heads.get(record.job)
        if isinstance(fact, (JobSubmitted, JobRejected)):
            head = born(fact, record.seq)
        elif known is not None:
            head = advance(known, fact, record.seq)
        elif type(fact) in NOTES:  # about a job that has ended
            _flush(connection, ends)
            connection.execute(sql.NOTED, (record.seq, record.job))
            continue
        else:
            continue  # what `verified` lets pass of a repaired journal
        if head.state.ended:
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
