"""Learning, on the main node alone: one line for each image job that succeeded, in the order in
which they did, and one for each rating.

What has to be written is found in the journal, so nothing is written for it while jobs run: a small
file remembers up to which record everything is in the lines. After a crash what lies behind it is
looked up again, and which of it has its line already. Lines outlive the jobs they tell of.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import structlog
from msgspec import Meta, Struct

from corral.controller.files.blobs import Blobs
from corral.controller.files.jsonl_file import JsonlFile, in_chunks
from corral.controller.images.paces import Paces
from corral.controller.journal import sql
from corral.controller.journal.record import UNREADABLE, Change, JournalRecord
from corral.controller.store import Store
from corral.core.errors import Conflict, CorralError, JobNotFound, StorageFailed
from corral.core.events import JobCancelled, JobFailed, JobSucceeded, Journaled
from corral.core.images.learning import (
    LONGEST_RESULT,
    Brief,
    LearningRecord,
    Rating,
    joined,
    learned,
    line_of,
    rated,
    rating_line,
    read_brief,
    read_rating,
)
from corral.core.job import JobId, State, Workload
from corral.core.malformed import MALFORMED
from corral.home import make_folder, read_json, write_private_json

log = structlog.get_logger()

T = TypeVar("T")
ENDS = frozenset({JobSucceeded, JobFailed, JobCancelled})
IN_MEMORY = 10_000
"""Ends that wait in memory for their lines; what is beyond is found in the journal again."""
AT_ONCE = 500
MOMENT_S = 0.2
"""How long a line waits for others that share its sync."""
AGAIN_S = 5.0
"""How long after a line could not be written, on a full disk for one, it is tried again."""
REMEMBER_S, IDLE_S = 1.0, 60.0
"""How much is looked up again after a crash, while lines come and while other work is done."""
CAUGHT_UP_WITHIN_S = 10.0
ID_LENGTH = 15
CHUNK = 256 * 1024
"""Of lines on their way to a client."""


class Success(NamedTuple):
    """Where the journal says that a job succeeded."""

    seq: int
    job: JobId


class LearningCursor(Struct, frozen=True):
    """Up to this record of the journal, all is in so many bytes of lines."""

    seq: Annotated[int, Meta(ge=0, le=2**53)] = 0
    size: Annotated[int, Meta(ge=0, le=2**53)] = 0


class LearningFilters(NamedTuple):
    """Which lines; what is empty chooses nothing."""

    since: float = 0.0
    until: float = 0.0
    """Ended at or after, and before."""
    batch: str = ""
    plan: str = ""

    def has(self, line: Brief) -> bool:
        return (
            line.ended_at >= self.since
            and (not self.until or line.ended_at < self.until)
            and (not self.batch or line.batch == self.batch)
            and (not self.plan or line.learning.plan == self.plan)
        )


class Learnings:
    def __init__(self, store: Store, blobs: Blobs, folder: Path) -> None:
        self._store, self._blobs = store, blobs
        make_folder(folder)
        self.paces = Paces()
        self.records = JsonlFile(folder / "records.jsonl")
        self.ratings = JsonlFile(folder / "ratings.jsonl")
        self._cursor = folder / "cursor.json"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="learning")
        """The one writer."""
        self._seq = store.journal.last_seq()
        self._done = 0
        """Up to this record of the journal everything is in the lines."""
        self._pending: list[Success] = []
        self._missed = False
        """Whether more came than memory holds."""
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        """Set while nothing waits for its line."""
        self._remembered_at = 0.0
        self._remembered: dict[str, int] = {}
        self.ended: Callable[[Change], None] = lambda change: None
        """Told of each image job that ended, however it did."""
        store.listen(self._committed, missed=self._look_it_up)

    def close(self) -> None:
        """What is being written is written. What waits is found again at the next start."""
        self._thread.shutdown(cancel_futures=True)

    def _committed(self, changes: Sequence[Change]) -> None:
        """Called for every commit, so it looks at ends alone, and of those at one word."""
        self._seq = changes[-1].seq
        for change in changes:
            if type(change.fact) in ENDS and change.head.shape.workload is Workload.PIPELINE:
                if type(change.fact) is JobSucceeded:
                    self._add(Success(change.seq, change.head.id))
                self.ended(change)

    def _look_it_up(self, changes: Sequence[Change]) -> None:
        """It is in the journal, also where it could not be heard."""
        self._missed = True
        self._wake()
        self._committed(changes)

    def _add(self, success: Success) -> None:
        self._missed = self._missed or len(self._pending) >= IN_MEMORY
        if not self._missed:
            self._pending.append(success)
        self._wake()

    def _wake(self) -> None:
        self._idle.clear()
        self._changed.set()

    async def _in_thread(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)

    # --- writing ---

    async def run(self) -> None:
        """Writes what has no line yet, then whatever comes. After anything that went wrong it
        begins again with what is on the disk."""
        while True:
            try:
                await self._catch_up()
                while not self._missed:
                    await self._write_pending()
            except (OSError, *UNREADABLE) as error:
                log.error("learning_not_written", error=str(error), again_in_s=AGAIN_S)
                await asyncio.sleep(AGAIN_S)

    async def caught_up(self) -> None:
        """Until everything that ended before this call has its line, or cannot have it now."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CAUGHT_UP_WITHIN_S):
                await self._idle.wait()

    async def _catch_up(self) -> None:
        until, self._missed = self._seq, False
        self._pending.clear()
        missing = await self._in_thread(self._begin, until)
        for start in range(0, len(missing), AT_ONCE):
            await self._write(missing[start : start + AT_ONCE])
        self._done = until

    def _begin(self, until: int) -> list[Success]:
        """Mends what a crash left, and looks up what lies behind the lines that are known."""
        self.ratings.mend(lambda line: read_rating(line) is not None)
        self.paces.recall(self.records)
        known = self._known()
        seq, size = known.seq, known.size
        if not self.records.ends_a_line(size):
            # Somebody took lines away: they come again, as far as the journal has their jobs.
            log.warning("learning_begins_anew", file=str(self.records.path))
            seq = size = 0
        there: set[JobId] = set()

        def whole(line: bytes) -> bool:
            brief = read_brief(line)
            if brief is not None:
                there.add(brief.job_id)
            return brief is not None

        self.records.mend(whole, size)
        with contextlib.closing(sql.open_read_only(self._store.journal.path)) as reader:
            rows = reader.execute(sql.IMAGES_SINCE, (seq, until)).fetchall()
        return [Success(*row) for row in rows if row[1] not in there]

    def _known(self) -> LearningCursor:
        try:
            return msgspec.convert(read_json(self._cursor), LearningCursor)
        except msgspec.ValidationError as error:  # what has its line is looked up in all of them
            log.warning("learning_cursor_damaged", file=str(self._cursor), error=str(error))
            return LearningCursor()

    async def _write_pending(self) -> None:
        while self._pending:
            some = self._pending[:AT_ONCE]
            await self._write(some)
            del self._pending[: len(some)]
            self._done = some[-1].seq
        if self._missed:
            return
        self._done = self._seq
        self._idle.set()
        await self._remember()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_S):
                await self._changed.wait()
        self._changed.clear()
        await asyncio.sleep(MOMENT_S)

    async def _write(self, successes: Sequence[Success]) -> None:
        await self._in_thread(self._append, successes, dict(self._store.world.names))

    def _append(self, successes: Sequence[Success], names: Mapping[str, str]) -> None:
        lines: list[bytes] = []
        with contextlib.closing(sql.open_read_only(self._store.journal.path)) as reader:
            for seq, job in successes:
                if (record := self.record(reader, seq, names)) is not None:
                    lines.append(line_of(record))
                else:
                    log.error("learning_lost", job=job, seq=seq)
        if lines:
            self.records.append(lines)
            for line in lines:
                self.paces.add(line)

    def record(
        self, reader: sqlite3.Connection, seq: int, names: Mapping[str, str]
    ) -> LearningRecord | None:
        """What is learned from the job that has this record of the journal, if it succeeded by
        then; None where the journal has not all of it any more."""
        facts, document = _story(reader, seq)
        ended = next((fact for fact in facts if isinstance(fact, JobSucceeded)), None)
        if document is None or ended is None:
            return None
        try:
            return learned(facts, document, self._result(ended), names)
        except MALFORMED as error:
            # A document of another Corral, for one: it costs its own line and no other.
            log.error("learning_not_understood", seq=seq, error=str(error))
            return None

    def _result(self, ended: JobSucceeded) -> bytes:
        blob = ended.result
        if blob is None:
            return b""
        if blob.data is not None:
            return blob.data
        try:
            with self._blobs.open_path(blob.sha256).open("rb") as file:
                return file.read(LONGEST_RESULT)  # of a longer one too little to be understood
        except (CorralError, FileNotFoundError):
            return b""  # removed by retention; the names of the artifacts are in the journal

    async def _remember(self) -> None:
        """With nothing on its way: what is learned from up to here is in front of the size."""
        if time.monotonic() < self._remembered_at + REMEMBER_S:
            return
        cursor = {"seq": self._done, "size": self.records.size()}
        self._remembered_at = time.monotonic()
        if cursor == self._remembered:
            return
        try:
            await self._in_thread(write_private_json, self._cursor, cursor)
        except OSError as error:
            log.warning("learning_cursor_not_written", error=str(error))
        else:
            self._remembered = cursor

    # --- rating ---

    async def rate(self, job: JobId, rating: int, note: str = "", *, by: str = "") -> Rating:
        """Safe when this returns. Of several the last one counts."""
        one = rated(job, rating, note, by, time.time())
        await self._check(job)
        try:
            await self._in_thread(self.ratings.append, [rating_line(one)])
        except OSError as error:
            raise StorageFailed(
                f"The rating could not be written ({error.strerror}). Free some space, then "
                "rate again."
            ) from error
        return one

    async def find(self, text: str, find: Callable[[str], Awaitable[JobId]]) -> JobId:
        """The job that a text means to the queue; a whole id may be one that only lines know."""
        try:
            return await find(text)
        except JobNotFound:
            if len(text) == ID_LENGTH and text.isascii() and text.isalnum():
                return text
            raise

    async def _check(self, job: JobId) -> None:
        """Only what was learned from is rated; its job may be gone from the history."""
        try:
            head = self._store.head(job)
        except JobNotFound:
            if await asyncio.to_thread(self._has_line, job):
                return
            raise
        if head.shape.workload is not Workload.PIPELINE:
            raise Conflict(f"Job {job} makes no images; only those are rated.", job_id=job)
        if head.state is not State.SUCCEEDED:
            raise Conflict(f"Job {job} is {head.state}; only what succeeded is rated.", job_id=job)

    def _has_line(self, job: JobId) -> bool:
        begins = f'{{"job_id":"{job}",'.encode()
        return any(line.startswith(begins) for _, line in self.records.read())

    def rated(self) -> dict[JobId, Rating]:
        """What counts of each job's ratings."""
        found = (read_rating(line) for _, line in self.ratings.read())
        return {one.job_id: one for one in found if one is not None}

    # --- reading ---

    async def exported(self, chosen: LearningFilters = LearningFilters()) -> AsyncIterator[bytes]:  # noqa: B008
        """Lines with their ratings, many at a time, as far as they are there now."""
        await self.caught_up()
        chunks = await asyncio.to_thread(self._chunks, chosen)
        while chunk := await asyncio.to_thread(next, chunks, b""):
            yield chunk

    def _chunks(self, chosen: LearningFilters) -> Iterator[bytes]:
        ratings, until = self.rated(), self.records.size()
        lines = (
            joined(line, ratings.get(brief.job_id))
            for _, line in self.records.read(until=until)
            if (brief := read_brief(line)) is not None and chosen.has(brief)
        )
        return in_chunks(lines, CHUNK)


def _story(reader: sqlite3.Connection, seq: int) -> tuple[list[Journaled], bytes | None]:
    """A job's facts up to this record, and its document; nothing if a record is gone or damaged."""
    facts: list[Journaled] = []
    document = None
    while seq:
        record = JournalRecord.of(reader.execute(sql.RECORD, (seq,)).fetchone())
        if record is None:
            return [], None
        try:
            facts.append(record.fact())
        except MALFORMED:
            return [], None
        document, seq = record.document, record.prev
    facts.reverse()
    return facts, document
