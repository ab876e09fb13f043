"""What is known of jobs, living and ended: from memory of young ones, else from the journal."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from corral.controller.history.ended import EndedJob
from corral.controller.journal.database import Journal
from corral.controller.journal.record import Change, JournalRecord
from corral.controller.recovery.start import folded
from corral.controller.world import World
from corral.core.errors import BlobNotFound, JobNotFound
from corral.core.events import JobRejected, JobSubmitted, JobSucceeded, Journaled
from corral.core.job import Blob, Head, JobId, State, document_digest
from corral.core.lifecycle import STORED

RECENT_DOCUMENTS = 16 * 1024 * 1024
"""Bytes of documents kept from submission to placement, so that short waits read no disk: the
youngest that come to so much, and as many again that are a little older."""
PAGE = 200
"""Facts of one job that are read before others get their turn."""
RECENT_JOBS = 1024
"""The youngest jobs, whose whole life so far is in memory: who follows one reads no disk."""
RECENT_GROUP = 256
"""Jobs that come in a larger commit are not kept: nobody follows one of so many."""


class Recent(Struct):
    """A young job: all its changes, and whether it has told or printed anything."""

    changes: list[Change]
    spoke: bool = False


class JobReader:
    """Reading of jobs. `Store` is one that also writes."""

    def __init__(self, journal: Journal, world: World) -> None:
        self.journal = journal
        self.world = world
        self.born: Head | None = None
        """The job that came last, for the next one to share what they have in common."""
        self.recent: dict[JobId, Recent] = {}
        self._recent_order: deque[JobId] = deque()
        self._documents: dict[JobId, tuple[bytes, str]] = {}
        """With their digests."""
        self._older: dict[JobId, tuple[bytes, str]] = {}
        self._documents_size = 0

    def head(self, job: JobId) -> Head:
        head = self.world.heads.get(job)
        if head is None and (recent := self.recent.get(job)) is not None:
            head = recent.changes[-1].head
        if head is None:
            ended = self.journal.ended(job)
            if ended is None:
                raise JobNotFound(
                    f"There is no job {job}. `corral jobs --all` lists them.", job_id=job
                )
            head = self._ended_head(ended)
        return head

    def newest(self, head: Head) -> Iterator[tuple[int, Journaled]]:
        """A job's facts with their numbers, the newest first, as far as somebody reads."""
        recent = self.recent.get(head.id)
        if recent is not None:
            return ((one.seq, one.fact) for one in reversed(recent.changes))
        return ((one.seq, one.fact()) for one in self.journal.backwards(head.last_seq))

    def story(self, head: Head) -> list[Journaled]:
        """How it went, oldest first: all but what was stored on the way."""
        recent = self.recent.get(head.id)
        if recent is not None:
            return [one.fact for one in recent.changes if not isinstance(one.fact, STORED)]
        return [record.fact() for record in self.journal.story(head.last_seq)]

    def result(self, job: JobId) -> Blob:
        """What it returned; small ones carry their bytes."""
        head = self.head(job)
        for _, fact in self.newest(head) if head.state is State.SUCCEEDED else ():
            if isinstance(fact, JobSucceeded):
                if fact.result is not None:
                    return fact.result
                break
        raise BlobNotFound(
            f"Job {job} has no result (yet). `corral show {job}` says more.", job_id=job
        )

    async def pages(self, head: Head, after: int) -> AsyncIterator[Sequence[tuple[int, Journaled]]]:
        """A job's facts behind `after`, oldest first, a page at a time."""
        recent = self.recent.get(head.id)
        if recent is not None:
            yield [(one.seq, one.fact) for one in recent.changes if after < one.seq]
            return
        later: list[int] = []
        some: list[JournalRecord] = []
        for record in self.journal.backwards(head.last_seq, after):
            some.append(record)
            if len(some) == PAGE:
                later += [one.seq for one in some]
                some.clear()
                await asyncio.sleep(0)
        yield [(one.seq, one.fact()) for one in reversed(some)]
        while later:
            seqs = later[-PAGE:]
            del later[-PAGE:]
            yield [(seq, self.journal.record(seq).fact()) for seq in reversed(seqs)]
            await asyncio.sleep(0)

    def document(self, head: Head) -> tuple[bytes, str]:
        """And its digest. It is asked for once, to be sent."""
        kept = self._forget(head.id)
        return kept if kept is not None else _digested(self.journal.document(head.submitted_seq))

    def digest(self, head: Head) -> str:
        sent = self.world.digests.get(head.id)
        if sent is not None:
            return sent
        submitted = self.journal.record(head.submitted_seq).fact()
        assert isinstance(submitted, (JobSubmitted, JobRejected))
        return submitted.digest

    def know_digests(self, heads: Sequence[Head]) -> None:
        """With one query, of jobs that somebody is about to tell the end of: after a restart they
        may be many. One that cannot be read is asked for by itself, and its reader told why."""
        known = self.world.digests
        unknown = {head.submitted_seq: head.id for head in heads if head.id not in known}
        if unknown:
            for seq, document in self.journal.documents(list(unknown)).items():
                known[unknown[seq]] = document_digest(document)

    def documents(self, heads: Sequence[Head]) -> dict[int, tuple[bytes, str]]:
        """Those that are not in memory, by the number of their submission, with one query."""
        here = (self._documents, self._older)
        away = [head.submitted_seq for head in heads if not any(head.id in one for one in here)]
        found = self.journal.documents(away) if len(away) > 1 else {}
        return {seq: _digested(document) for seq, document in found.items()}

    def _ended_head(self, ended: EndedJob) -> Head:
        head = folded(self.journal.story(ended.last_seq))
        if head.last_seq == ended.last_seq:
            return head
        course = replace(head.course, story_seq=head.last_seq)
        return replace(head, last_seq=ended.last_seq, course=course)

    def _forget(self, job: JobId) -> tuple[bytes, str] | None:
        found = self._documents.pop(job, None)
        if found is None:
            return self._older.pop(job, None)
        self._documents_size -= len(found[0])
        return found

    def _remember(self, job: JobId, document: bytes, digest: str) -> None:
        self._documents[job] = document, digest
        self._documents_size += len(document)
        if self._documents_size > RECENT_DOCUMENTS:
            # One by one they would leave holes all over the memory.
            self._older, self._documents, self._documents_size = self._documents, {}, 0

    def _keep_recent(self, changes: Sequence[Change]) -> None:
        recent, few = self.recent, len(changes) <= RECENT_GROUP
        for change in changes:
            known = recent.get(change.head.id)
            if known is not None:
                known.changes.append(change)
                if len(known.changes) > RECENT_JOBS:
                    del recent[change.head.id]
            elif few and change.seq == change.head.submitted_seq:
                recent[change.head.id] = Recent([change])
                self._recent_order.append(change.head.id)
                if len(self._recent_order) > RECENT_JOBS:
                    recent.pop(self._recent_order.popleft(), None)


def _digested(document: bytes) -> tuple[bytes, str]:
    return document, document_digest(document)
