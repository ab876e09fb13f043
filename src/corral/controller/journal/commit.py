"""Facts of several requests, checked on their way into one commit; and the thread that writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from corral.controller.history.ended import EndedJob
from corral.controller.jobs.reader import JobReader
from corral.controller.journal.record import Change, JournalRecord, record_of
from corral.core.errors import Conflict, CorralError, JobNotFound
from corral.core.events import JobRejected, JobSubmitted, Journaled
from corral.core.job import Head, JobId
from corral.core.lifecycle import NOTES, STORED, advance, born
from corral.core.worker import Worker

Then = Callable[[Any, Exception | None], None]
"""Called in the event loop with what the work returned, or with what it raised."""


class Request(Struct):
    """What somebody wants written: all of it or nothing."""

    facts: Sequence[Journaled]
    documents: Mapping[JobId, bytes]
    workers: Sequence[Worker]
    skip_conflicts: bool
    insist: bool
    done: asyncio.Future[list[Change]]
    accepted: list[Change] = []


class Group:
    def __init__(self, seq: int, store: JobReader) -> None:
        self.seq = seq
        self.heads: dict[JobId, Head] = {}
        self.records: list[JournalRecord] = []
        self.changes: list[Change] = []
        self.ends: list[EndedJob] = []
        self.noted: list[tuple[int, str]] = []
        self.workers: list[Worker] = []
        self.documents: dict[JobId, bytes] = {}
        self._store = store

    def take(self, request: Request) -> bool:
        """Adds a request, or answers it with its conflict and leaves no trace of it."""
        records, ends, noted = len(self.records), len(self.ends), len(self.noted)
        undo: list[tuple[JobId, Head | None]] = []
        add, heads, documents, accepted = self._add, self.heads, request.documents, request.accepted
        for fact in request.facts:
            job = fact.job
            was = heads.get(job)
            try:
                accepted.append(add(fact, documents.get(job) if documents else None))
                undo.append((job, was))
            except CorralError as error:
                if request.skip_conflicts and isinstance(error, (Conflict, JobNotFound)):
                    continue
                self.seq -= len(undo)
                for job, head in reversed(undo):
                    if head is None:
                        del heads[job]
                    else:
                        heads[job] = head
                del self.records[records:], self.changes[records:]
                del self.ends[ends:], self.noted[noted:]
                if not request.done.cancelled():
                    request.done.set_exception(error)
                return False
        self.workers.extend(request.workers)
        if documents:
            self.documents.update(documents)
        return True

    def _add(self, fact: Journaled, document: bytes | None) -> Change:
        seq = self.seq + 1
        head, prev = self._next(fact, seq)
        is_note = type(fact) in NOTES
        if is_note and isinstance(fact, STORED):
            fact = replace(fact, after=head.story_seq)
        record = record_of(fact, seq, prev, document)
        self.seq = seq
        self.heads[head.id] = head
        self.records.append(record)
        if head.state.ended:
            if is_note:
                self.noted.append((seq, head.id))
            else:
                self.ends.append(EndedJob.of(head, fact))
        change = Change(seq, fact, head)
        self.changes.append(change)
        return change

    def _next(self, fact: Journaled, seq: int) -> tuple[Head, int]:
        if isinstance(fact, (JobSubmitted, JobRejected)):
            self._store.born = born(fact, seq, self._store.born)
            return self._store.born, 0
        job, store = fact.job, self._store
        head = self.heads.get(job) or store.world.heads.get(job) or store.head(job)
        return advance(head, fact, seq), head.last_seq


class WriterThread:
    """The one thread that writes the journal. Plainer than an executor, whose futures and locks
    would take a fifth of a commit of a few hundred microseconds."""

    def __init__(self) -> None:
        self._todo: SimpleQueue[tuple[Callable[[], Any], Callable[..., Any], Then] | None]
        self._todo = SimpleQueue()
        self._thread: Thread | None = None
        self._lock = Lock()
        """Held while something is written."""

    def run(self, work: Callable[[], Any], then: Then) -> None:
        if self._thread is None and not self._begin():
            return self.run_here(work, then)
        self._todo.put((work, asyncio.get_running_loop().call_soon_threadsafe, then))

    def _begin(self) -> bool:
        thread = Thread(target=self._work, name="journal", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no memory for one, or the system allows no more of them
            return False
        self._thread = thread
        return True

    def run_here(self, work: Callable[[], Any], then: Then) -> None:
        """The same in the caller's thread, if the other one is idle."""
        if not self._lock.acquire(blocking=False):
            return self.run(work, then)
        try:
            result, failed = work(), None
        except Exception as error:
            result, failed = None, error
        finally:
            self._lock.release()
        then(result, failed)

    def _work(self) -> None:
        while (task := self._todo.get()) is not None:
            work, call, then = task
            try:
                with self._lock:
                    result = work()
            except Exception as error:
                call(then, None, error)
            else:
                call(then, result, None)

    def close(self) -> None:
        """Waits for what was asked for."""
        if self._thread is not None:
            self._todo.put(None)
            self._thread.join()
            self._thread = None
