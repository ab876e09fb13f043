"""Early starts: a few new jobs are placed in the commit that accepts them, and sent while it is
being written (decision 0024).

The plain way writes a submission, and the loop places what waits in its next turn. This one stands
in front of the store at `Queue`, with the same call; without it `SentEarly` is always empty.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import structlog
from msgspec import Struct

from corral.controller.journal.record import Change
from corral.controller.store import Store
from corral.controller.world import FRONT
from corral.core.events import (
    AttemptBegan,
    AttemptExited,
    AttemptPlaced,
    AttemptReport,
    EngineReport,
    JobSubmitted,
    Journaled,
)
from corral.core.job import Head, JobId, Shape
from corral.core.lifecycle import advance, born, shape_of
from corral.scheduler.plan import Placement, Waiting

if TYPE_CHECKING:
    from corral.controller.loop import Loop

log = structlog.get_logger()

MAX_EARLY_STARTS = 4
"""A submission that starts no more than so many jobs sends them while they are written."""


class Early(Struct):
    """A job that was sent before it is on disk."""

    head: Head
    """As it will be then."""
    written: asyncio.Future[Any] | None = None


class SentEarly(dict[JobId, Early]):
    """The jobs that were sent and are not on disk yet."""

    def head(self, job: JobId) -> Head | None:
        early = self.get(job)
        return None if early is None else early.head

    async def until_written(self, reports: Sequence[EngineReport], store: Store) -> None:
        """A job that was sent early may speak before it is written. That it began and ended can
        follow it into the same commit; all else has to wait."""
        for report in reports:
            if isinstance(report, (AttemptBegan, AttemptExited)):
                continue
            if isinstance(report, AttemptReport):
                early = self.get(report.job)
                pending = [] if early is None else [early]
            else:
                pending = list(self.values())
            wanted = [one.written for one in pending if one.written is not None]
            if wanted:
                store.hurry()
                await asyncio.wait(wanted)


class EarlyStarts:
    def __init__(
        self,
        store: Store,
        loop: Loop,
        *,
        room_to_spare: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store, self._loop, self._sent = store, loop, loop.early
        self._room_to_spare = room_to_spare
        """Whether what is written next will surely find room."""
        self._stopping: set[asyncio.Future[Any]] = set()

    def accept(
        self, facts: Sequence[Journaled], documents: Mapping[JobId, bytes], held: bool
    ) -> asyncio.Future[list[Change]]:
        """What can start at once is placed in the same commit. Of a `held` submission the caller
        is told when it has ended, so it may reach the disk together with its end."""
        submitted = [fact for fact in facts if isinstance(fact, JobSubmitted)]
        placements = self._place(submitted)
        placed = self._loop.placed(placements, time.time(), submitted)
        if 0 < len(placed) <= MAX_EARLY_STARTS and self._store.has_room and self._room_to_spare():
            self._start(submitted, placed, documents)
        sent = [self._sent[one.job] for one in placements if one.job in self._sent]
        # What was refused must never have run, so what was sent is not refused.
        written = self._store.enqueue(
            [*facts, *placed], documents, may_wait=held and bool(sent), insist=bool(sent)
        )
        for early in sent:
            early.written = written
        if placements:
            jobs = {placement.job for placement in placements}
            shapes = {fact.job: shape_of(fact) for fact in submitted if fact.job in jobs}
            self._store.world.reserve(placements, shapes)
        written.add_done_callback(lambda done: self._written(done, placements))
        return written

    def _place(self, submitted: Sequence[JobSubmitted]) -> Sequence[Placement]:
        """Where they can go at once. Only while nobody waits, so that nobody is overtaken."""
        if self._store.world.lines or not submitted or self._loop.why_paused():
            return ()
        lines: dict[Shape, list[Waiting]] = {}
        for number, fact in enumerate(submitted[:FRONT]):
            lines.setdefault(shape_of(fact), []).append(Waiting(fact.job, number, fact.at, 0))
        return self._loop.decide(self._loop.snapshot(submitted[0].at, lines)).placements

    def _start(
        self,
        submitted: Sequence[JobSubmitted],
        placed: Sequence[AttemptPlaced],
        documents: Mapping[JobId, bytes],
    ) -> None:
        """No client sees the jobs before the commit, their numbers are new, and what comes back
        goes to the disk with or after them: a crash leaves only work that nobody asked for."""
        by_job = {fact.job: fact for fact in submitted}
        for fact in placed:
            head = advance(born(by_job[fact.job], 0), fact, 0)
            if head.given.secrets:
                continue
            try:
                document, digest = documents[head.id], by_job[head.id].digest
                engine = self._loop.fleet.engines[head.engine]
                self._loop.send(head, engine, document, digest, {})
            except Exception as error:  # then it goes the usual way, once it is written
                log.error("attempt_not_sent_early", job=head.id, exc_info=error)
            else:
                self._sent[head.id] = Early(head)

    def _written(self, done: asyncio.Future[list[Change]], placements: Sequence[Placement]) -> None:
        failed = done.cancelled() or done.exception() is not None  # told to whoever still listens
        self._store.world.release(placements)
        for placement in placements:
            early = self._sent.pop(placement.job, None)
            if early is not None and failed:
                self._forget(early.head)

    def _forget(self, early: Head) -> None:
        """It was sent already, and will never have been accepted."""
        self._store.world.digests.pop(early.id, None)
        stop = self._loop.fleet.stop(early, grace_s=0.0)
        task = asyncio.gather(stop, return_exceptions=True)  # nobody waits for it
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)
