"""Everything that happens to jobs, as any number of watchers see it, each at its own pace.

A watcher holds a cursor and nothing else: it is woken, reads what lies behind its cursor from
journal and spool, and sleeps again. One that stops reading costs nobody anything. Where many watch
the same job they are woken a few at a time, round by round, so that a crowd of watchers costs a
fixed share of the loop and each of its members a longer wait with more to read at its end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from corral.controller.spool import Spool
from corral.controller.store import Change, Store
from corral.core.errors import InvalidJob, JobNotFound
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

AFTER_OUTPUT = (ArtifactStored, JobRequeued, JobSucceeded, JobFailed, JobCancelled)
"""Facts that follow what the attempt had written by then."""
ENDS = (JobSucceeded, JobFailed, JobCancelled, JobRejected)
RECENT_ENDS = 4096
MANY, BREATH_S = 100, 0.004
"""While so many jobs of a batch live, their ends are told in helpings."""
PAGE = 500
AT_ONCE = 16
"""Watchers woken in one moment; together they take the loop a few milliseconds."""
SHARE_S = 0.0005
"""The time that each watcher of a crowd has to itself: a thousand are woken twice a second."""


class Cursor(NamedTuple):
    """Behind which record, and where in the output of which attempt."""

    seq: int = 0
    attempt: int = 0
    offset: int = 0

    @classmethod
    def parse(cls, text: str) -> Cursor:
        try:
            cursor = cls(*(int(part) for part in text.split("."))) if text else cls()
            if not all(0 <= part < 1 << 53 for part in cursor):
                raise ValueError(text)
            return cursor
        except (ValueError, TypeError):
            raise InvalidJob(
                f"{text[:80]!r} is no cursor; use one that an event carried."
            ) from None

    def __str__(self) -> str:
        return f"{self.seq}.{self.attempt}.{self.offset}"


class Seen(NamedTuple):
    """One thing a watcher sees: a fact, a line of the spool, or a gap in the output."""

    job: JobId
    cursor: Cursor
    attempt: int
    fact: Journaled | None = None
    frame: bytes = b""
    skipped: int = 0


class Page(list[Seen]):
    """What watchers with the same cursor see next. Whoever encodes it first keeps it for them."""

    encoded: Any = None


class Feed:
    def __init__(self, store: Store, spool: Spool) -> None:
        self._store, self._spool = store, spool
        self._rounds: dict[str, asyncio.Task[None]] = {}
        self._heard_meanwhile: set[str] = set()
        self._all_read: dict[JobId, tuple[int, int]] = {}
        """Where the output of a watched job ended, until it goes on."""
        self._last_page: tuple[JobId, Cursor, Page] | None = None
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
            if head.state.ended and head.batch:
                self._ends.append(change)
            if watchers:
                self._wake(head.id)
                if head.batch and head.state.ended:
                    self._wake(f"batch {head.batch}")

    def _missed(self, changes: Sequence[Change]) -> None:
        """Everybody looks again, and ends are looked up in the journal."""
        self._ends.clear()
        for key in list(self._watchers):
            self._wake(key)

    @contextmanager
    def _watching(self, key: str):  # type: ignore[no-untyped-def]
        event = asyncio.Event()
        self._watchers.setdefault(key, set()).add(event)
        try:
            yield event
        finally:
            self._watchers[key].discard(event)
            if not self._watchers[key]:
                del self._watchers[key]
                self._all_read.pop(key, None)
                if self._last_page is not None and self._last_page[0] == key:
                    self._last_page = None  # read for a crowd that is gone; retention may follow

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
    ) -> AsyncGenerator[list[Seen], None]:
        """Everything about one job behind the cursor, until the job has ended, or until now."""
        seq, attempt, offset = cursor
        with self._watching(job) as event:
            while True:
                event.clear()
                head = self._store.head(job)
                async for told, fact in self._facts(head, seq):
                    if isinstance(fact, AFTER_OUTPUT):
                        async for piece in self._drain(job, Cursor(seq, attempt, offset)):
                            offset = piece[-1].cursor.offset
                            yield piece
                    if isinstance(fact, AttemptPlaced):
                        attempt, offset = fact.attempt, 0
                    seq = told
                    if not isinstance(fact, ResultOrphaned):
                        yield [Seen(job, Cursor(seq, attempt, offset), attempt, fact)]
                if head.state.ended:
                    return
                async for piece in self._drain(job, Cursor(seq, attempt, offset)):
                    offset = piece[-1].cursor.offset
                    yield piece
                if until_now:
                    return
                await event.wait()

    async def _facts(self, head: Head, after: int) -> AsyncIterator[tuple[int, Journaled]]:
        async for page in self._store.pages(head, after):
            for one in page:
                yield one

    async def watch_briefly(self, job: JobId, seconds: float) -> list[Seen]:
        """Everything about a job until it has ended, or for that long."""
        late = False
        with self._watching(job) as event:

            def ring() -> None:
                nonlocal late
                late = True
                event.set()

            timer = asyncio.get_running_loop().call_later(seconds, ring)
            try:
                while not late and not self._store.head(job).state.ended:
                    event.clear()
                    await event.wait()
            finally:
                timer.cancel()
        head, recent = self._store.head(job), self._store.recent.get(job)
        if recent is not None and not recent.spoke:
            seen, attempt = [], 0
            for seq, fact in self._store.facts(head):
                if isinstance(fact, AttemptPlaced):
                    attempt = fact.attempt
                if not isinstance(fact, ResultOrphaned):
                    seen.append(Seen(job, Cursor(seq, attempt), attempt, fact))
            return seen
        return [one async for piece in self.watch(job, Cursor(), until_now=True) for one in piece]

    async def watch_end(self, job: JobId) -> AsyncIterator[list[Seen]]:
        """Only how the job ended, once it has; its output is not even read."""
        with self._watching(job) as event:
            while not (head := self._store.head(job)).state.ended:
                event.clear()
                await event.wait()
        for told, fact in self._store.newest(head):
            if isinstance(fact, ENDS):
                yield [Seen(job, Cursor(told), head.attempt, fact)]
                return

    async def _drain(self, job: JobId, cursor: Cursor) -> AsyncIterator[list[Seen]]:
        seq, attempt, offset = cursor
        recent = self._store.recent.get(job)
        if recent is not None and not recent.spoke:
            return
        while attempt and self._all_read.get(job) != (attempt, offset):
            page = self._page(job, Cursor(seq, attempt, offset))
            if not page:
                return
            offset = page[-1].cursor.offset
            yield page

    def _page(self, job: JobId, cursor: Cursor) -> Page:
        """Of a crowd that was woken together the first one reads for all."""
        if self._last_page is not None and self._last_page[:2] == (job, cursor):
            return self._last_page[2]
        seq, attempt, offset = cursor
        piece, page = self._spool.read(job, attempt, offset), Page()
        if piece.skipped:
            offset += piece.skipped
            page.append(Seen(job, Cursor(seq, attempt, offset), attempt, skipped=piece.skipped))
        for line in piece.lines:
            offset += len(line) + 1
            page.append(Seen(job, Cursor(seq, attempt, offset), attempt, frame=line))
        if page:
            self._last_page = (job, cursor, page)
        elif job in self._watchers:
            self._all_read[job] = (attempt, offset)
        return page

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
                    if self._store.world.batches.get(batch, 0) > MANY:
                        await asyncio.sleep(BREATH_S)  # the next ones come together
                else:
                    await event.wait()

    def _ends_behind(self, batch: str, seq: int) -> list[Seen]:
        known = self._ends
        if known and known[0].seq <= seq + 1 and len(known) <= RECENT_ENDS:
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
