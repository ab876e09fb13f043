"""Facts of several requests on their way into one commit, each checked against the lifecycle."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from corral.controller.history.ended import EndedJob
from corral.controller.jobs.reader import JobReader
from corral.controller.journal.listeners import Change
from corral.controller.journal.record import JournalRecord, record_of
from corral.core.errors import Conflict, CorralError, JobNotFound
from corral.core.events import JobRejected, JobSubmitted, Journaled
from corral.core.job import Head, JobId
from corral.core.lifecycle import NOTES, STORED, advance, born
from corral.core.worker import Worker


class Request:
    """What somebody wants written: all of it or nothing."""

    __slots__ = ("accepted", "documents", "done", "facts", "insist", "skip_conflicts", "workers")

    def __init__(
        self,
        facts: Sequence[Journaled],
        documents: Mapping[JobId, bytes],
        workers: Sequence[Worker],
        skip_conflicts: bool,
        insist: bool,
        done: asyncio.Future[list[Change]],
    ) -> None:
        self.facts, self.documents, self.workers = facts, documents, workers
        self.skip_conflicts, self.insist, self.done = skip_conflicts, insist, done
        self.accepted: list[Change] = []


class Group:
    """Facts of several requests on their way into one transaction."""

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
        for fact in request.facts:
            was = self.heads.get(fact.job)
            try:
                request.accepted.append(self._add(fact, request.documents.get(fact.job)))
                undo.append((fact.job, was))
            except CorralError as error:
                if request.skip_conflicts and isinstance(error, (Conflict, JobNotFound)):
                    continue
                self.seq -= len(undo)
                for job, head in reversed(undo):
                    if head is None:
                        del self.heads[job]
                    else:
                        self.heads[job] = head
                del self.records[records:], self.changes[records:]
                del self.ends[ends:], self.noted[noted:]
                if not request.done.cancelled():
                    request.done.set_exception(error)
                return False
        self.workers.extend(request.workers)
        self.documents.update(request.documents)
        return True

    def _add(self, fact: Journaled, document: bytes | None) -> Change:
        seq = self.seq + 1
        head, prev = self._next(fact, seq)
        if isinstance(fact, STORED):
            fact = replace(fact, after=head.story_seq)
        record = record_of(fact, seq, prev, document)
        self.seq = seq
        self.heads[fact.job] = head
        self.records.append(record)
        if head.state.ended:
            if type(fact) in NOTES:
                self.noted.append((seq, fact.job))
            else:
                self.ends.append(EndedJob.of(head, fact))
        change = Change(seq, fact, head)
        self.changes.append(change)
        return change

    def _next(self, fact: Journaled, seq: int) -> tuple[Head, int]:
        if isinstance(fact, (JobSubmitted, JobRejected)):
            self._store.born = born(fact, seq, self._store.born)
            return self._store.born, 0
        head = self.heads.get(fact.job) or self._store.head(fact.job)
        return advance(head, fact, seq), head.last_seq
