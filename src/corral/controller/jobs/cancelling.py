"""Cancelling jobs and batches: what waits ends at once, what runs is asked to end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence

import structlog

from corral.controller.engines.fleet import Fleet
from corral.controller.store import Store
from corral.core.errors import Conflict
from corral.core.events import JobCancelled, JobStopping, Journaled
from corral.core.job import Head, JobId, State

log = structlog.get_logger()

LOOKED_AT_ONCE = 500
"""How many living jobs are looked at, or cancelled in one commit, before others get their turn."""


class Cancelling:
    def __init__(self, store: Store, fleet: Fleet, *, grace_s: float) -> None:
        self._store, self._fleet, self._grace_s = store, fleet, grace_s
        self._growing: dict[str, list[asyncio.Event]] = {}

    @contextlib.contextmanager
    def growing(self, batch: str) -> Iterator[asyncio.Event]:
        """The event is set when the batch is cancelled while it is submitted in slices."""
        cancelled = asyncio.Event()
        told = self._growing.setdefault(batch, [])
        told.append(cancelled)
        try:
            yield cancelled
        finally:
            told.remove(cancelled)
            if not told:
                del self._growing[batch]

    async def cancel(self, job: JobId) -> Head:
        while True:
            head = self._store.head(job)
            if head.state is State.CANCELLED:
                return head
            if head.state is State.STOPPING:
                await self._stop(head)  # the first word may not have arrived
                return head
            if head.state.ended:
                raise Conflict(
                    f"Job {job} has already {head.state}; nothing to cancel.", job_id=job
                )
            try:
                await self._store.append([_cancelled(head, time.time())])
            except Conflict:
                continue  # it moved on meanwhile: look again
            if head.state is not State.QUEUED:
                await self._stop(head)
            return self._store.head(job)

    async def cancel_batch(self, batch: str) -> int:
        for cancelled in self._growing.get(batch, ()):
            cancelled.set()
        count, heads = 0, self._store.world.heads
        if batch in self._store.world.batches:
            left = list(heads)
            left.reverse()  # taken from its end: what is done with needs no memory
            while left:
                some = left[-LOOKED_AT_ONCE:]
                del left[-LOOKED_AT_ONCE:]
                living = [head for job in reversed(some) if (head := heads.get(job)) is not None]
                count += await self._cancel_some([one for one in living if one.batch == batch])
                await asyncio.sleep(0)
        log.info("batch_cancelled", batch=batch, count=count)
        return count

    async def _cancel_some(self, living: Sequence[Head]) -> int:
        if not living:
            return 0
        now = time.time()
        facts = [_cancelled(head, now) for head in living]
        changes = await self._store.append(facts, skip_conflicts=True)
        for change in changes:
            if change.head.state is State.STOPPING:
                await self._stop(change.head)
        done = {change.head.id for change in changes}
        for head in living:
            if head.id not in done and head.id in self._store.world.heads:
                with contextlib.suppress(Conflict):  # or ended this very moment
                    await self.cancel(head.id)  # it moved on while the others were written
        return len(living)

    async def _stop(self, head: Head) -> None:
        await self._fleet.stop(head, grace_s=self._grace_s)


def _cancelled(head: Head, now: float) -> Journaled:
    kind = JobCancelled if head.state is State.QUEUED else JobStopping
    return kind(job=head.id, at=now, attempt=head.attempt)
