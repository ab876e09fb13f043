"""The one door to write. Facts that arrive while a commit runs share the next one.

A group is checked against the table of lifecycle, written, synced, and only then applied to the
world and published. Nobody is told anything before the fact behind it is on disk; only work may
be sent ahead of it (see `early_starts`).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from corral.controller.history.ended import UsedKeys
from corral.controller.jobs.reader import JobReader
from corral.controller.journal.commit import Group, Request, WriterThread
from corral.controller.journal.database import Journal
from corral.controller.journal.pruned import Slice
from corral.controller.journal.record import Change
from corral.controller.journal.snapshot import EVERY, Snapshots
from corral.controller.recovery.start import resumed
from corral.controller.world import World
from corral.core.errors import StorageFailed, Unavailable
from corral.core.events import JobSubmitted, Journaled
from corral.core.job import JobId
from corral.core.worker import Worker

log = structlog.get_logger()

MARK_S = 0.05
"""A power cut finds the high-water mark at most this old: a sync of its own for every commit
would double what a commit costs (docs/decisions/0021)."""
SMALL_COMMIT, QUICK_S, ALONE_S = 4, 0.001, 0.00005
SLOW_S, COMMIT_DELAY_S = 0.0005, 0.002
"""On a slow disk, a fact of which nobody is told anything yet waits so long for the next one."""
GROUP_FACTS = 1_000
"""Facts of different requests that share a commit; a request is never divided."""
SUBMITTING_S = 0.5
ROOM_S = 1.0
"""How often it is tried again to write what can no longer be refused."""
BEGUN = (
    "The controller ends before it could write this submission down, and what was submitted may "
    "have begun. Submit it again with the same idempotency key."
)
UNTRUSTED = "The controller cannot trust its disk any more and is ending."
MISTAKEN = (
    "The controller could not take in what it had written, which is a mistake of its own, and is "
    "ending. Nothing is lost: a new start reads it from the disk."
)

Hear = Callable[[Sequence[Change]], None]


class Store(JobReader):
    def __init__(self, journal: Journal, world: World, *, snapshot_every: int = EVERY) -> None:
        super().__init__(journal, world)
        self.snapshots = Snapshots(journal, snapshot_every)
        self.seq = 0
        """The last record of the journal that the world has taken."""
        self._pending: list[Request] = []
        self._insisting: list[Request] = []
        """Those that found no room and are written before anything else, as soon as there is."""
        self._submitted_at = -math.inf
        self._again: asyncio.TimerHandle | None = None
        self.has_room = True
        """Whether the last commit found room."""
        self._closing = False
        self._prunes: list[tuple[Sequence[JobId], float, asyncio.Future[Slice]]] = []
        self._idle = asyncio.Event()
        """Set while nothing is being written."""
        self._idle.set()
        self._waiting: asyncio.TimerHandle | None = None
        """Runs while all that is pending may wait for more."""
        self._marking: asyncio.TimerHandle | None = None
        self._commit_s = 0.0
        """How long commits take lately; a slow one now and then says little of the next."""
        self._committed_at = 0.0
        self._thread = WriterThread()
        self._listeners: list[tuple[Hear, Hear | None]] = []
        self.committed: Callable[[float, int], None] = lambda seconds, facts: None
        """Told how long each commit took and how many facts shared it."""
        self.failed = asyncio.Event()
        """Set when the disk, or the world, can no longer be trusted; the controller then ends."""
        self._why_failed = ""

    def listen(self, listener: Hear, *, missed: Hear | None = None) -> None:
        """Called with every committed group, after the world took it. What a listener raises is
        logged; `missed` is then called with the same group, to catch up on it in another way."""
        self._listeners.append((listener, missed))

    # --- recovery ---

    def recover(self) -> None:
        """Folds the verified journal into the world. Raises JournalDamaged and changes nothing
        where an acknowledged record is lost."""
        found = resumed(self.journal)
        self.seq = found.seq
        self.journal.confirm(self.seq)
        for head in sorted(found.heads.values(), key=lambda head: head.submitted_seq):
            self.world.apply(head)
        self.snapshots.recovered(found.seq, found.heads.values(), found.since)
        self.world.names = {worker.id: worker.name for worker in self.journal.workers()}

    # --- writing ---

    async def append(
        self,
        facts: Sequence[Journaled],
        *,
        workers: Sequence[Worker] = (),
        skip_conflicts: bool = False,
        insist: bool = False,
    ) -> list[Change]:
        """Durable when this returns. All facts or none, unless `skip_conflicts` leaves out those
        that the table no longer allows (a job cancelled while a plan was made)."""
        return await self.enqueue(facts, {}, workers, skip_conflicts, insist=insist)

    def enqueue(
        self,
        facts: Sequence[Journaled],
        documents: Mapping[JobId, bytes],
        workers: Sequence[Worker] = (),
        skip_conflicts: bool = False,
        may_wait: bool = False,
        insist: bool = False,
    ) -> asyncio.Future[list[Change]]:
        """The same as a future: written also if nobody waits for it. On a slow disk, what
        `may_wait` shares the commit of whatever comes next, if that comes within a moment. What
        has happened already can no longer be refused: with `insist` it waits for room."""
        if self.failed.is_set():
            raise self._refusal()
        if 0 < len(documents) <= SMALL_COMMIT:
            self._submitted_at = time.monotonic()
        done: asyncio.Future[list[Change]] = asyncio.get_running_loop().create_future()
        self._pending.append(Request(facts, documents, workers, skip_conflicts, insist, done))
        if not may_wait or self._commit_s < SLOW_S:
            self._begin()
        elif self._idle.is_set() and self._waiting is None:
            self._waiting = asyncio.get_running_loop().call_later(COMMIT_DELAY_S, self._begin)
        return done

    def submitted_lately(self) -> bool:
        """Whether somebody submits a job or a few at a time, and waits for each answer: a large
        commit would keep them waiting."""
        return time.monotonic() - self._submitted_at < SUBMITTING_S

    def hurry(self) -> None:
        """Somebody asks for what could have waited."""
        if self._waiting is not None:
            self._begin()

    async def prune(self, jobs: Sequence[JobId], within_s: float) -> Slice:
        """Removes ended jobs from the journal, between two groups, as many as it finds time for.
        In line with everything written: a group sees the journal before or after, never both."""
        if self.failed.is_set():
            raise self._refusal()
        done: asyncio.Future[Slice] = asyncio.get_running_loop().create_future()
        self._prunes.append((jobs, within_s, done))
        self._begin()
        return await done

    def _begin(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if self._idle.is_set():
            self._idle.clear()
            # Not at once: what else is asked for in this turn of the event loop comes along.
            asyncio.get_running_loop().call_soon(self._write_next)

    def _write_next(self) -> None:
        if self._prunes:
            self._prune(*self._prunes.pop(0))
        elif self._pending:
            self._write_group()
        else:
            self._idle.set()

    def _prune(self, jobs: Sequence[JobId], within_s: float, done: asyncio.Future[Slice]) -> None:
        for job in jobs:
            self.recent.pop(job, None)  # or a late note could still find its way in

        def pruned(result: Any, error: Exception | None) -> None:
            if isinstance(error, StorageFailed) and error.fatal:
                self._give_up(UNTRUSTED)
            if error is None:
                _answer(done, result)
            elif not done.done():
                done.set_exception(error)
            self._write_next()

        self._thread.run(lambda: self.journal.prune(jobs, within_s), pruned)

    def _write_group(self) -> None:
        requests = self._next_requests()
        group = Group(self.seq, self)
        try:
            accepted = [request for request in requests if group.take(request)]
        except Exception as error:
            # A mistake of ours in one of them: none is written, and the next ones get their turn.
            self._not_written(group, requests, error)
            return self._write_next()
        began = time.perf_counter()

        def written(_: Any, error: Exception | None) -> None:
            self._committed_at = time.perf_counter()
            seconds = self._committed_at - began
            self._commit_s += (seconds - self._commit_s) / 8 if self._commit_s else seconds
            try:
                if error is None:
                    self._written(group, accepted, seconds)
                else:
                    self._not_written(group, accepted, error)
            finally:
                if self._pending or self._prunes:
                    # Not at once: others have their turn between two commits.
                    asyncio.get_running_loop().call_soon(self._write_next)
                else:
                    self._idle.set()

        if not group.records and not group.workers:
            return written(None, None)

        def write() -> None:
            self.journal.write(group.records, group.ends, group.noted, group.workers)

        alone = began - self._committed_at > ALONE_S
        if alone and len(group.records) <= SMALL_COMMIT and self._commit_s < QUICK_S:
            # On a quick disk a small commit is over sooner than two threads have met.
            self._thread.run_here(write, written)
        else:
            self._thread.run(write, written)

    def _next_requests(self) -> list[Request]:
        """At least one, and no more than the event loop has time for, however many wait. Never out
        of order: a report may follow its submission into the same commit."""
        if self._insisting:
            self._pending, self._insisting = [*self._insisting, *self._pending], []
        count = facts = 0
        while count < len(self._pending) and facts < GROUP_FACTS:
            facts += len(self._pending[count].facts)
            count += 1
        requests, self._pending = self._pending[:count], self._pending[count:]
        return requests

    def _written(self, group: Group, accepted: Sequence[Request], seconds: float) -> None:
        self.seq = group.seq
        self.has_room = self.has_room or bool(group.records)
        if self._marking is None:
            self._marking = asyncio.get_running_loop().call_later(MARK_S, self._sync_mark)
        try:
            self._take_in(group)
        except Exception as error:
            # The world is what all decisions follow from, and it is not what is on disk. A new
            # start reads it from there.
            log.error("commit_not_taken_in", exc_info=error, facts=len(group.records))
            self._give_up(MISTAKEN)
        else:
            self._tell(group.changes, seconds)
        for request in accepted:
            _answer(request.done, request.accepted)
        if (
            group.records
            and self.snapshots.due(self.seq, len(self.world.heads))
            and not self.failed.is_set()  # or the world may have less than the journal
        ):
            self.snapshots.take(group.records[-1], self.world.heads.values())

    def _not_written(self, group: Group, accepted: Sequence[Request], error: Exception) -> None:
        log.error("journal_not_written", error=str(error), facts=len(group.records))
        no_room = isinstance(error, StorageFailed) and not error.fatal
        self.has_room = self.has_room and not no_room
        for request in accepted:
            if no_room and request.insist and not self._closing:
                request.accepted = []
                self._insisting.append(request)
            elif not request.done.done():
                submitted = request.insist and request.documents
                request.done.set_exception(Unavailable(BEGUN) if submitted else error)
        if self._insisting and self._again is None:
            self._again = asyncio.get_running_loop().call_later(ROOM_S, self._insist)
        if isinstance(error, StorageFailed) and error.fatal:
            self._give_up(UNTRUSTED)

    def _insist(self) -> None:
        self._again = None
        if self._insisting:
            self._pending, self._insisting = [*self._insisting, *self._pending], []
            self._begin()

    def _sync_mark(self) -> None:
        self._marking = None
        self._thread.run(self.journal.sync_mark, lambda _, error: None)

    def _give_up(self, why: str) -> None:
        """After this nothing is written: another sync could only pretend that all is well."""
        self._why_failed = why
        self.failed.set()
        requests = [*self._insisting, *self._pending]
        self._insisting, self._pending = [], []
        prunes, self._prunes = self._prunes, []
        waiting: list[asyncio.Future[Any]] = [request.done for request in requests]
        for done in [*waiting, *(pruned for _, _, pruned in prunes)]:
            if not done.cancelled():
                done.set_exception(self._refusal())

    def _refusal(self) -> StorageFailed:
        failed = StorageFailed(self._why_failed)
        failed.fatal = True
        return failed

    def _take_in(self, group: Group) -> None:
        if group.documents:
            for change in group.changes:
                if type(change.fact) is JobSubmitted:
                    job = change.fact.job
                    self._remember(job, group.documents[job], change.fact.digest)
        for head in group.heads.values():
            self.world.apply(head)
            if head.state.ended:
                self._forget(head.id)
        for worker in group.workers:
            self.world.names[worker.id] = worker.name
        self._keep_recent(group.changes)

    def _tell(self, changes: Sequence[Change], seconds: float) -> None:
        """What one listener raises is its own: the others hear all the same, and nobody takes it
        for a failed commit."""
        if not changes:
            return
        for hear, missed in self._listeners:
            try:
                hear(changes)
            except Exception as error:
                _log_failed(hear, changes, error)
                if missed is not None:
                    try:
                        missed(changes)
                    except Exception as another:
                        _log_failed(missed, changes, another)
        try:
            self.committed(seconds, len(changes))
        except Exception as error:
            log.error("listener_failed", listener="committed", exc_info=error)

    async def know_keys(self, used: UsedKeys) -> None:
        """In line with everything written: no key is added while these are."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._thread.run(lambda: self.journal.know_keys(used), lambda *_: _answer(done, None))
        await done

    async def close(self) -> None:
        self.hurry()
        await self._idle.wait()
        self._closing = True
        if self._again is not None:
            self._again.cancel()
        self._insist()
        await self._idle.wait()
        if self._marking is not None:
            self._marking.cancel()
            self._sync_mark()
        self._thread.close()
        self.snapshots.close()
        self.journal.close()


def _answer(done: asyncio.Future[Any], result: Any) -> None:
    if not done.done():  # whoever asked may have gone away
        done.set_result(result)


def _log_failed(hear: Hear, changes: Sequence[Change], error: Exception) -> None:
    log.error(
        "listener_failed",
        listener=getattr(hear, "__qualname__", repr(hear)),
        first_seq=changes[0].seq,
        facts=len(changes),
        exc_info=error,
    )
