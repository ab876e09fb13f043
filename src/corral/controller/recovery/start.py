"""A start: the journal is proven and folded, all of it or what lies behind a snapshot."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

import structlog

from corral.controller.history.ended import UsedKeys
from corral.controller.journal import snapshot
from corral.controller.journal.database import Journal
from corral.controller.journal.record import UNREADABLE, JournalRecord
from corral.controller.journal.snapshot import JournalSnapshot, SnapshotUnusable
from corral.controller.recovery.proof import index_damaged, proven, proven_behind
from corral.core.errors import Conflict, CorralError
from corral.core.events import JobRejected, JobSubmitted, Journaled
from corral.core.job import Head, JobId
from corral.core.lifecycle import advance, born

log = structlog.get_logger()

JOBS_AT_ONCE = 500
KEYS_AT_ONCE = 5000


class Recovered(NamedTuple):
    seq: int
    """The last number."""
    heads: dict[JobId, Head]
    """Of all living jobs."""
    since: int = 0
    """Up to this record only those of living jobs are proven; the rest is still to be."""


def recovered(journal: Journal) -> Recovered:
    """From the journal alone: every record and every row of the history proven."""
    heads = heads_of(journal, proven(journal))
    try:
        journal.know_keys(read_keys(journal))
    except UNREADABLE as error:
        raise index_damaged(str(error)) from error
    return Recovered(journal.last_seq(), heads)


def resumed(journal: Journal) -> Recovered:
    """From the snapshot, where there is one and it fits; else from the journal alone."""
    try:
        known = snapshot.read(journal.folder)
        if known is not None:
            return _behind(journal, known)
    except SnapshotUnusable as error:
        log.warning("snapshot_not_used", reason=str(error))
    return recovered(journal)


def _behind(journal: Journal, known: JournalSnapshot) -> Recovered:
    """Whatever is wrong on the way, the whole journal is asked: it names what is damaged."""
    try:
        if journal.record(known.seq).crc != known.crc:
            raise SnapshotUnusable("it is of another journal")
        if not journal.has_its_tables():
            raise SnapshotUnusable("the database has other tables")
        heads = heads_of(journal, proven_behind(journal, known.living, known.seq))
    except (CorralError, *UNREADABLE) as error:
        raise SnapshotUnusable(str(error)) from error
    return Recovered(journal.last_seq(), heads, known.seq)


def heads_of(journal: Journal, living: Mapping[JobId, int]) -> dict[JobId, Head]:
    """The heads of living jobs, folded from their own records, each proven."""
    heads: dict[JobId, Head] = {}
    like: Head | None = None
    jobs = iter(sorted(living.items(), key=lambda one: one[1]))
    while some := dict(islice(jobs, JOBS_AT_ONCE)):
        chains: dict[JobId, list[JournalRecord]] = {job: [] for job in some}
        while some:
            records = journal.records(list(some.values()))
            for job, record in zip(some, records, strict=True):
                if record.job != job:
                    raise Conflict(f"Record {record.seq} is not of job {job}.", job_id=job)
                chains[job].append(record)
            some = {record.job: record.prev for record in records if record.prev}
        for job, chain in chains.items():
            heads[job] = head = like = folded(reversed(chain), like)
            if head.state.ended:
                raise Conflict(f"Job {job} has ended.", job_id=job)
    return heads


def folded(records: Iterable[JournalRecord], like: Head | None = None) -> Head:
    """A job's head after all its records, oldest first."""
    head: Head | None = None
    for record in records:
        head = fold(head, record.fact(), record.seq, like)
    assert head is not None, "a job has records"
    return head


def fold(head: Head | None, fact: Journaled, seq: int, like: Head | None = None) -> Head:
    if isinstance(fact, (JobSubmitted, JobRejected)):
        return born(fact, seq, like)
    if head is None:
        raise Conflict(f"Job {fact.job} was never submitted.", job_id=fact.job)
    return advance(head, fact, seq)


def read_keys(journal: Journal, *, pause_s: float = 0.0) -> UsedKeys:
    """The idempotency keys of all ended jobs; with pauses where other threads have work to do."""
    used, last = UsedKeys(), ""
    while keys := journal.keys_behind(last, KEYS_AT_ONCE):
        for key in keys:
            used.add(key)
        last = keys[-1]
        if pause_s:
            time.sleep(pause_s)
    return used
