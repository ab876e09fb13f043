"""What webhooks are told: the fields of each kind of notification, and which ones are due."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from corral.controller.journal import sql
from corral.controller.store import Store
from corral.core.events import JobFailed, WorkerLost
from corral.core.job import Head, JobId

LONGEST = 2000
"""Characters of a failure's message; the rest is in the job itself."""

Fields = dict[str, Any]
Make = Callable[[], Awaitable[Fields]]


class EndedRow(NamedTuple):
    """An ended job: one that failed, or the last one of its batch."""

    job: JobId
    failed: bool
    last_seq: int
    ended_at: float


def ended_since(path: Path, after: int, until: int, everybody: bool) -> list[EndedRow]:
    """What webhooks may have to be told of these records, in order. Unless there are webhooks for
    everybody, only jobs that brought their own are looked for. Read in a thread of its own."""
    wanted = {"after": after, "until": until, "everybody": everybody}
    with contextlib.closing(sql.open_read_only(path)) as reader:
        return [EndedRow(*row) for row in reader.execute(sql.TOLD_SINCE, wanted)]


def ended_by_state(path: Path, batch: str) -> dict[str, int]:
    with contextlib.closing(sql.open_read_only(path)) as reader:
        return dict(reader.execute(sql.BATCH_BY_STATE, (batch,)).fetchall())


class Payloads:
    """Makes the fields when a notification is sent, since it may have waited for long."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def job_failed(self, job: JobId) -> Fields:
        head = self._store.head(job)
        ends = (fact for _, fact in self._store.newest(head))
        failed = next(fact for fact in ends if isinstance(fact, JobFailed))
        failure = failed.failure
        message = failure.message[:LONGEST]
        what = f"{failure.type}: {message}" if failure.type else message
        return {
            "message": f"Job {_called(head)} failed ({failure.code}): {what}",
            "job": {
                **self._view(head),
                "seconds": failed.seconds,
                "ended_at": failed.at,
                "failure": {"code": failure.code, "type": failure.type, "message": message},
            },
        }

    async def batch_done(self, batch: str, job: JobId) -> Fields:
        """A job without a batch that brought a webhook of its own is a batch of one."""
        if not batch:
            head = self._store.head(job)
            counts = {head.state.value: 1}
            return {
                "message": f"Job {_called(head)} is done: it {head.state.value}.",
                "batch": {"name": "", "jobs": 1, "counts": counts},
                "job": self._view(head),
            }
        path = self._store.journal.path
        counts = await asyncio.to_thread(ended_by_state, path, batch)
        told = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        return {
            "message": f"Batch {batch} is done: {told}.",
            "batch": {"name": batch, "jobs": sum(counts.values()), "counts": counts},
        }

    async def worker_lost(self, report: WorkerLost, name: str, attempts: int) -> Fields:
        held = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        return {
            "message": f"Worker {name} was lost with {held}. {report.reason}",
            "worker": {
                "id": report.worker,
                "name": name,
                "reason": report.reason,
                "attempts": attempts,
            },
        }

    def _view(self, head: Head) -> Fields:
        return {
            "job_id": head.id,
            "name": head.name,
            "state": head.state.value,
            "batch": head.batch,
            "user": head.given.user,
            "labels": dict(head.given.labels),
            "attempt": head.attempt,
            "worker": self._store.world.names.get(head.worker, head.worker),
            "submitted_at": head.submitted_at,
        }


def _called(head: Head) -> str:
    return f"{head.id} ({head.name})" if head.name else head.id
