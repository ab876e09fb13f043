"""Everything that happens to jobs, as any number of watchers see it, each at its own pace.

A watcher holds a cursor and little else: it is woken, reads what lies behind its cursor from
journal and spool, and sleeps again. One that stops reading holds the page that it did not take; the
more watchers there are, the smaller are pages, and all that stopped at one place share one. Many
who watch the same job are woken a few at a time, so that a crowd costs a fixed share of the loop;
and of all that have something to read, one does so in each turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import contextmanager, suppress
from weakref import WeakValueDictionary

from corral.controller.journal.record import Change
from corral.controller.output.loop_turns import LoopTurns
from corral.controller.output.pages import Cursor, Page, Seen
from corral.controller.output.spool import READ, Spool
from corral.controller.store import Store
from corral.core.errors import JobNotFound
from corral.core.events import (
    ArtifactStored,
    AttemptPlaced,
    JobCancelled,
    JobFailed,
    JobRejected,
    JobRequeued,
    JobSucceeded,
    Journaled,
    ResultOrphaned,
)
from corral.core.frames import ProgressFrame, decode_frame, latest
from corral.core.job import Head, JobId

ENDS_OF_ATTEMPTS = (JobRequeued, JobSucceeded, JobFailed, JobCancelled)
AFTER_OUTPUT = (ArtifactStored, *ENDS_OF_ATTEMPTS)
"""Facts that follow what the attempt had written by then."""
ENDS = (JobSucceeded, JobFailed, JobCancelled, JobRejected)
RECENT_ENDS = 4096
LARGE_BATCH, BATCH_ENDS_DELAY_S = 100, 0.004
"""While so many jobs of a batch live, their ends are told in helpings."""
PAGE = 500
AT_ONCE = 16
"""Watchers woken in one moment; together they take the loop a few milliseconds."""
SHARE_S = 0.0005
"""The time that each watcher of a crowd has to itself: a thousand are woken twice a second."""
CROWD_BYTES = 4 << 20
"""Of pages that stay for a moment, for others who come to the same place."""
ALL_PAGES, SMALLEST_PAGE = 8 << 20, 4 << 10
"""Bytes that all watchers together are about to be sent, and the least that one is."""


class Feed:
    def __init__(self, store: Store, spool: Spool, turns: LoopTurns | None = None) -> None:
        self._store, self._spool = store, spool
        self._turns = turns or LoopTurns()
        """Whoever reads takes one."""
        self._rounds: dict[str, asyncio.Task[None]] = {}
        self._heard_meanwhile: set[str] = set()
        self._all_read: dict[JobId, tuple[int, int]] = {}
        """Where the output of a watched job ended, until it goes on."""
        self._pages: OrderedDict[tuple[JobId, Cursor, int], Page] = OrderedDict()
        """Those that were read last, for the others of a crowd."""
        self._held: WeakValueDictionary[tuple[JobId, Cursor, int], Page] = WeakValueDictionary()
        """Those that somebody is about to be sent."""
        self._pages_size = 0
        self._count = 0
        """Of all watchers."""
        self._last_marked: tuple[JobId, int] | None = None
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._ends: deque[Change] = deque(maxlen=RECENT_ENDS)
        store.listen(self._committed, missed=self._missed)

    def heard(self, job: JobId) -> None:
        """The job printed or told something."""
        self._all_read.pop(job, None)
        self._wake(job)

    def _wake(self, key: str) -> None:
        events = self._watchers.get(key)
        if not events:
            return
        if len(events) <= AT_ONCE:
            for event in events:
                event.set()
        elif key in self._rounds:
            self._heard_meanwhile.add(key)
        else:
            self._rounds[key] = asyncio.get_running_loop().create_task(self._wake_crowd(key))

    async def _wake_crowd(self, key: str) -> None:
        try:
            while events := list(self._watchers.get(key, ())):
                self._heard_meanwhile.discard(key)
                for first in range(0, len(events), AT_ONCE):
                    for event in events[first : first + AT_ONCE]:
                        event.set()
                    await asyncio.sleep(AT_ONCE * SHARE_S)
                if key not in self._heard_meanwhile:
                    return
        finally:
            self._heard_meanwhile.discard(key)
            del self._rounds[key]

    def _committed(self, changes: Sequence[Change]) -> None:
        watchers = self._watchers
        for change in changes:
            head = change.head
            batch = head.given.batch if head.state.ended else ""
            if batch:
                self._ends.append(change)
            if watchers:
                self._all_read.pop(head.id, None)  # or nobody would see what an end says is missing
                self._wake(head.id)
                if batch:
                    self._wake(f"batch {batch}")

    def _missed(self, changes: Sequence[Change]) -> None:
        """Everybody looks again, and ends are looked up in the journal."""
        self._ends.clear()
        for key in list(self._watchers):
            self._wake(key)

    @contextmanager
    def _watching(self, key: str):  # type: ignore[no-untyped-def]
        event = asyncio.Event()
        self._watchers.setdefault(key, set()).add(event)
        self._count += 1
        try:
            yield event
        finally:
            self._count -= 1
            self._watchers[key].discard(event)
            if not self._watchers[key]:
                del self._watchers[key]
                self._all_read.pop(key, None)
                # Read for a crowd that is gone; retention may follow.
                for page in [page for page in self._pages if page[0] == key]:
                    self._pages_size -= self._pages.pop(page).size

    def progress(self, head: Head) -> ProgressFrame | None:
        """The latest that a job told of itself, running or ended."""
        if head.state.held or not head.attempt:
            return self._store.world.progress.get(head.id)
        known = None
        for line in self._spool.tail(head.id, head.attempt):
            frame = decode_frame(line)
            if isinstance(frame, ProgressFrame):
                known = latest(known, frame)
        return known

    async def watch(
        self, job: JobId, cursor: Cursor, *, until_now: bool = False
    ) -> AsyncGenerator[Sequence[Seen], None]:
        """Everything about one job behind the cursor, until the job has ended, or until now."""
        seq, attempt, number = cursor
        offset = self._spool.place(job, attempt, number) if number else 0
        with self._watching(job) as event:
            while True:
                event.clear()
                head = self._store.head(job)
                async for page in self._store.pages(head, seq):
                    told: list[Seen] = []
                    for record, fact in page:
                        if isinstance(fact, AFTER_OUTPUT):
                            self._mark_missing(job, fact)
                            now = Cursor(seq, attempt, number)
                            async for piece in self._drain(job, now, offset):
                                if told:
                                    yield told
                                    told = []
                                offset, number = piece.end, piece.number
                                yield piece
                        if isinstance(fact, AttemptPlaced):
                            attempt, offset, number = fact.attempt, 0, 0
                        seq = record
                        if not isinstance(fact, ResultOrphaned):
                            told.append(Seen(job, Cursor(seq, attempt, number), attempt, fact))
                    if told:
                        yield told
                if head.state.ended:
                    return
                async for piece in self._drain(job, Cursor(seq, attempt, number), offset):
                    offset, number = piece.end, piece.number
                    yield piece
                if until_now:
                    return
                await event.wait()

    async def mark_missing(self, job: JobId) -> None:
        """Whoever reads the output of this job is told what a power cut took of it."""
        if job not in self._store.recent:
            async for page in self._store.pages(self._store.head(job), 0):
                for _, fact in page:
                    self._mark_missing(job, fact)

    def _mark_missing(self, job: JobId, fact: Journaled) -> None:
        if isinstance(fact, ENDS_OF_ATTEMPTS) and fact.output:
            ended = (job, fact.attempt)
            if job not in self._store.recent and ended != self._last_marked:
                self._spool.complete(*ended, fact.output)
                self._spool.finish(*ended)
                self._all_read.pop(job, None)
                self._last_marked = ended

    async def watch_briefly(self, job: JobId, seconds: float) -> list[Seen]:
        """Everything about a job until it has ended, or for that long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._until_ended(job)
        recent = self._store.recent.get(job)
        if recent is not None and not recent.spoke:
            seen, attempt = [], 0
            for change in recent.changes:
                if isinstance(change.fact, AttemptPlaced):
                    attempt = change.fact.attempt
                if not isinstance(change.fact, ResultOrphaned):
                    seen.append(Seen(job, Cursor(change.seq, attempt), attempt, change.fact))
            return seen
        return [one async for piece in self.watch(job, Cursor(), until_now=True) for one in piece]

    async def watch_end(self, job: JobId) -> AsyncIterator[list[Seen]]:
        """Only how the job ended, once it has; its output is not even read."""
        head = await self._until_ended(job)
        for told, fact in self._store.newest(head):
            if isinstance(fact, ENDS):
                yield [Seen(job, Cursor(told), head.attempt, fact)]
                return

    async def _until_ended(self, job: JobId) -> Head:
        with self._watching(job) as event:
            while not (head := self._store.head(job)).state.ended:
                event.clear()
                await event.wait()
        return head

    async def _drain(self, job: JobId, cursor: Cursor, offset: int) -> AsyncIterator[Page]:
        recent = self._store.recent.get(job)
        if recent is not None and not recent.spoke:
            return
        size = SMALLEST_PAGE
        while cursor.attempt and self._all_read.get(job) != (cursor.attempt, offset):
            await self._turns.take()
            page = self._page(job, cursor, offset, size)
            if page is None:
                return
            at_gap = not page.piece.lines
            told = self._spool.told_before(job, cursor.attempt, offset) if at_gap else None
            offset, page = page.end, page.unseen(cursor.number, told)
            if page is None:
                continue
            cursor = cursor._replace(number=page.number)
            yield page
            # One that takes a page gets a larger one: who never takes any holds little.
            size = min(2 * size, self._largest_page())

    def _page(self, job: JobId, cursor: Cursor, offset: int, size: int) -> Page | None:
        """Of a crowd that has come to one place the first one reads for all; when more was written
        since, the next one does: or all would go through the small pages of whoever is first."""
        key = (job, cursor, offset)
        known = self._held.get(key)
        if known is not None:
            end = self._spool.end(job, cursor.attempt)
            if known.size >= size or end is None or known.end >= end:
                return known
        piece = self._spool.read(job, cursor.attempt, offset, size)
        if not piece.lines and not piece.skipped:
            if job in self._watchers:
                self._all_read[job] = (cursor.attempt, offset)
            return None
        page = Page(job, cursor, offset, piece)
        if key in self._pages:
            self._pages_size -= self._pages.pop(key).size
        self._pages[key] = self._held[key] = page
        self._pages_size += page.size
        while self._pages_size > CROWD_BYTES and len(self._pages) > 1:
            self._pages_size -= self._pages.popitem(last=False)[1].size
        return page

    def _largest_page(self) -> int:
        """Halved as often as it takes until a page for each watcher is not too much."""
        size = READ
        while size > SMALLEST_PAGE and size * self._count > ALL_PAGES:
            size //= 2
        return size

    async def watch_batch(self, batch: str, cursor: Cursor) -> AsyncIterator[list[Seen]]:
        """The ends of a batch's jobs behind the cursor, for as long as somebody listens."""
        seq = cursor.seq
        with self._watching(f"batch {batch}") as event:
            while True:
                event.clear()
                seen = self._ends_behind(batch, seq)
                if seen:
                    seq = seen[-1].cursor.seq
                    yield seen
                    if self._store.world.batches.get(batch, 0) > LARGE_BATCH:
                        await asyncio.sleep(BATCH_ENDS_DELAY_S)  # the next ones come together
                else:
                    await event.wait()

    def _ends_behind(self, batch: str, seq: int) -> list[Seen]:
        known = self._ends
        if known and known[0].seq <= seq + 1:
            recent = []
            for change in reversed(known):
                if change.seq <= seq:
                    break
                if change.head.batch == batch:
                    recent.append(change)
            return [
                Seen(change.head.id, Cursor(change.seq), change.head.attempt, change.fact)
                for change in reversed(recent)
            ]
        ends = []
        for ended in self._store.journal.ended_in_batch(batch, seq, PAGE):
            with suppress(JobNotFound):  # pruned this very moment
                ends.append(self._end_of(ended.job, ended.last_seq))
        return ends

    def _end_of(self, job: JobId, last_seq: int) -> Seen:
        """Read from the journal alone: its rows are there a moment before the world has them."""
        for record in self._store.journal.backwards(last_seq):
            fact = record.fact()
            if isinstance(fact, ENDS):
                attempt = 0 if isinstance(fact, JobRejected) else fact.attempt
                return Seen(job, Cursor(last_seq), attempt, fact)
        raise AssertionError("an ended job has an end")
