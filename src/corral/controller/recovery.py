"""A start: the whole journal is read once, every record and every row of the history proven."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from corral.controller.ended import Ended
from corral.controller.journal import Journal, index_damaged, verified
from corral.controller.record import UNREADABLE, Record
from corral.controller.used_keys import UsedKeys
from corral.core.events import AttemptPlaced, JobRejected, JobRequeued, JobSubmitted, Journaled
from corral.core.job import Head, JobId
from corral.core.lifecycle import NEXT, advance, born

BIRTHS = frozenset(kind.__name__ for state, kind in NEXT if state is None)
ENDINGS = {
    kind.__name__: state
    for (before, kind), state in NEXT.items()
    if before is not None and state.ended
}
"""Kinds of records that end a living job, and how."""


def recovered(journal: Journal) -> tuple[int, dict[JobId, Head]]:
    """The last number and the heads of all living jobs, every record and every row proven.

    Most jobs have ended: what happened to those in between is proven, and not even decoded."""
    heads, history = dict[JobId, Head](), 0
    like: Head | None = None
    later: dict[JobId, list[Record]] = {}
    for record in verified(journal):
        job, kind = record.job, record.kind
        if not job:
            continue
        head = heads.get(job)
        if kind in BIRTHS:
            fact = record.fact()
            head = like = heads[job] = fold(None, fact, record.seq, like)
            if head.state.ended:
                history += _row(Ended.of(heads.pop(job), fact))
        elif head is None:
            # A note about an ended job: it only moved the end of that job's chain.
            history += _chain_end(job, record.seq) - _chain_end(job, record.prev)
        elif kind in ENDINGS:
            del heads[job]
            worker = _worker(later.pop(job, ()))
            last = replace(head, state=ENDINGS[kind], last_seq=record.seq, worker=worker)
            history += _row(Ended.of(last, record.fact()))
        else:
            later.setdefault(job, []).append(record)
    for job, records in later.items():
        for record in records:
            heads[job] = fold(heads[job], record.fact(), record.seq)
    try:
        found, used = 0, UsedKeys()
        for ended in journal.history():
            found += _row(ended)
            used.add(ended.key)
    except UNREADABLE as error:
        raise index_damaged(str(error)) from error
    if history != found:
        raise index_damaged("the history of ended jobs is not what the records say")
    journal.used_keys = used
    return journal.last_seq(), heads


_packed = msgspec.msgpack.Encoder().encode


def _row(ended: Ended) -> int:
    """A row of the history as a number; their sum needs no memory for each ended job."""
    known = _packed((*ended[:3], *ended[4:]))
    return zlib.crc32(known) + _chain_end(ended.job, ended.last_seq)


def _chain_end(job: JobId, last_seq: int) -> int:
    return zlib.crc32(f"{job}|{last_seq}".encode())


def fold(head: Head | None, fact: Journaled, seq: int, like: Head | None = None) -> Head:
    if isinstance(fact, (JobSubmitted, JobRejected)):
        return born(fact, seq, like)
    assert head is not None, "a job is born first"
    return advance(head, fact, seq)


def _worker(records: Sequence[Record]) -> str:
    """Where a job was when it ended: on the last worker that it was not taken from again."""
    for record in reversed(records):
        if record.kind in (AttemptPlaced.__name__, JobRequeued.__name__):
            fact = record.fact()
            return fact.worker if isinstance(fact, AttemptPlaced) else ""
    return ""
