"""What clients may ask: submit, cancel, retry, look, and why. Every no has its reason."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar, assert_never

import structlog
from msgspec.structs import replace

from corral.controller.auth.vault import Vault
from corral.controller.files.assets import Assets
from corral.controller.files.blobs import Blobs
from corral.controller.jobs.admission import Accepted, Draft, admit
from corral.controller.jobs.cancelling import LOOKED_AT_ONCE, Cancelling
from corral.controller.jobs.extending import Extending
from corral.controller.jobs.retrying import Retry
from corral.controller.journal.record import Change
from corral.controller.loop import Loop
from corral.controller.store import Store
from corral.core.errors import (
    Conflict,
    CorralError,
    DocumentTooLarge,
    InvalidJob,
    JobNotFound,
    Unavailable,
)
from corral.core.events import CheckpointStored, JobMovedToFront, JobRejected, Journaled
from corral.core.ids import Ids
from corral.core.job import (
    INLINE_LIMIT,
    Blob,
    FunctionCall,
    Head,
    Job,
    JobId,
    PipelineCall,
    ScriptCall,
    State,
    decode_document,
    document_digest,
    encode_document,
)
from corral.core.worker import Worker

log = structlog.get_logger()

T = TypeVar("T")

Accept = Callable[[Sequence[Journaled], Mapping[JobId, bytes], bool], asyncio.Future[list[Change]]]
"""Writes a submission down: `Queue` itself, or `EarlyStarts` in front of the store."""


class Queue:
    def __init__(
        self,
        store: Store,
        blobs: Blobs,
        loop: Loop,
        *,
        first_workers: Callable[[], Awaitable[Sequence[Worker]]],
        vault: Vault,
        assets: Assets,
        document_limit: int,
        cancel_grace_s: float,
        check_room: Callable[[], None] = lambda: None,
        accept: Accept | None = None,
    ) -> None:
        self._store, self._blobs = store, blobs
        self._vault, self._assets = vault, assets
        self._loop, self._first_workers = loop, first_workers
        self._document_limit = document_limit
        self.check_room = check_room
        """Raises where no new work may come in, because the disk is full."""
        self._accept = accept or self._write
        self._ids = Ids(secrets.randbits(30))
        self._submitting: dict[str, asyncio.Future[list[Change]]] = {}
        self._changes: set[asyncio.Task[Any]] = set()
        self._cancelling = Cancelling(store, loop.fleet, grace_s=cancel_grace_s)
        self._extending = Extending(store, loop.fleet)
        self.growing = self._cancelling.growing
        self.stopping = False

    async def to_the_end(self, change: Coroutine[Any, Any, T]) -> T:
        """A caller who goes away in the middle does not leave half a change behind."""
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changed)
        return await asyncio.shield(task)

    def _changed(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # told to whoever still listens

    # --- submitting ---

    async def submit(self, jobs: Sequence[Job], *, held: bool = False) -> list[Accepted]:
        """All of them or none, durable when this returns. Refused ones keep an id and a reason in
        the history, and raise it. Of a `held` one the caller is told when it has ended."""
        if self.stopping:
            raise Unavailable(
                "The controller is stopping and takes no new jobs. Submit again soon."
            )
        self.check_room()
        jobs = [job if _rides_along(job) else await self._stored(job) for job in jobs]
        if any(job.inputs for job in jobs):
            jobs = await self._with_inputs(jobs)
        workers: Sequence[Worker] = self._loop.workers()
        if not any(worker.takes_work for worker in workers) and (
            not workers or any(job.wait is False for job in jobs)
        ):
            workers = await self._first_workers() or workers
        keys = {job.key for job in jobs if job.key}
        while pending := next((self._submitting[k] for k in keys if k in self._submitting), None):
            await asyncio.wait([pending])  # somebody's job with this key is on its way to the disk
        # From here to the commit nothing waits: what is looked up stays true. A caller who goes
        # away then leaves a job behind, never half of one.
        draft = self._draft(jobs, workers)
        if draft.facts:
            written = self._accept(draft.facts, draft.documents, held)
            self._submitting.update(dict.fromkeys(keys, written))
            written.add_done_callback(lambda _: [self._submitting.pop(key) for key in keys])
            await asyncio.shield(written)
        if draft.refusal is not None:
            raise draft.refusal
        return draft.answers

    def _write(
        self, facts: Sequence[Journaled], documents: Mapping[JobId, bytes], held: bool
    ) -> asyncio.Future[list[Change]]:
        return self._store.enqueue(facts, documents)

    def _draft(self, jobs: Sequence[Job], workers: Sequence[Worker]) -> Draft:
        """What a submission means: facts and answers, or its refusal."""
        draft, now, seed = Draft(len(jobs)), time.time(), random.getrandbits(30)
        mine: dict[str, tuple[JobId, str]] = {}
        alike: dict[tuple[object, ...], tuple[str, CorralError | None]] = {}
        world, buffer = self._store.world, bytearray()
        keys = [job.key for job in jobs if job.key and job.key not in world.keys]
        ended = self._store.journal.ended_by_keys(keys) if keys else {}
        for job in jobs:
            known = self._known(job, mine, ended)
            if known is not None:
                draft.answers.append(Accepted(known))
                continue
            if job.secrets:
                self._vault.check_for_job(job.secrets)
            job_id = self._ids.new(now, seed=seed)
            if isinstance(job.work, PipelineCall):
                record = replace(job.work.record, job_id=job_id)
                job = replace(job, work=PipelineCall(record))
            document = encode_document(job, buffer)
            if len(document) > self._document_limit:
                raise DocumentTooLarge(
                    f"The job document has {len(document):,} bytes, more than "
                    f"{self._document_limit:,}. Put large data into files or artifacts."
                )
            mine[job.key] = (job_id, job.name)
            shape = (job.needs, job.workload, job.queue_class, job.wait)
            verdict = alike.get(shape)
            if verdict is None or verdict[1] is not None:
                verdict = alike[shape] = admit(job, workers)
            draft.add(job, job_id, document, now, *verdict)
        if draft.refusal is not None:
            # All or none: only the refusals are written down.
            draft.facts = [fact for fact in draft.facts if isinstance(fact, JobRejected)]
            draft.documents = {fact.job: draft.documents[fact.job] for fact in draft.facts}
        return draft

    def _known(
        self, job: Job, mine: Mapping[str, tuple[JobId, str]], ended: Mapping[str, JobId]
    ) -> JobId | None:
        """The job that has this key already, here or earlier in the same submission. The key
        decides: the same function pickled by another process has other bytes."""
        if not job.key:
            return None
        found, name = mine.get(job.key, (None, ""))
        head: Head | None = None
        if found is None:
            found = self._store.world.keys.get(job.key) or ended.get(job.key)
            if found is None:
                return None
            try:
                head = self._store.head(found)
            except JobNotFound:
                return None  # pruned from the history this very moment
            name = head.name
        if name != job.name:
            raise Conflict(
                f"The idempotency key {job.key!r} already belongs to job {found}, "
                f"{name or 'which has no name'!r}, and this one is {job.name!r}. Use a new key.",
                job_id=found,
            )
        if (
            head is not None
            and isinstance(job.work, PipelineCall)
            and self._store.digest(head) != _digest_as(job, found)
        ):
            raise Conflict(
                f"Job {found} has the key {job.key!r} and other settings than this plan: the plan, "
                "its preset or an input was changed. Use a new key.",
                job_id=found,
            )
        return found

    async def _with_inputs(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs with each input known to be there, by size and digest. Many share theirs."""
        named = dict.fromkeys(one for job in jobs for one in job.inputs)
        found = {one: await self._assets.settle(one) for one in named}
        return [
            replace(job, inputs=tuple(found[one] for one in job.inputs)) if job.inputs else job
            for job in jobs
        ]

    async def _stored(self, job: Job) -> Job:
        """The job with large bytes moved to the blobs, and every digest known to be there."""
        work = job.work
        if isinstance(work, FunctionCall):
            work = replace(
                work,
                function=await self._stored_blob(work.function),
                arguments=await self._stored_blob(work.arguments),
                code=await self._stored_blob(work.code) if work.code else None,
            )
        elif isinstance(work, ScriptCall):
            work = replace(work, package=await self._stored_blob(work.package))
        elif not isinstance(work, PipelineCall):
            assert_never(work)
        return replace(job, work=work)

    async def _stored_blob(self, blob: Blob) -> Blob:
        if blob.data is None:
            if not self._blobs.has(blob.sha256):
                self._blobs.check_not_pruned(blob.sha256)
                raise InvalidJob(
                    f"The package {blob.sha256} is not stored here. Upload it first: "
                    "PutPackage, or PUT /packages."
                )
            # Not what the caller says: a worker makes room for so much, and waits for all of it.
            return replace(blob, size=self._blobs.size(blob.sha256))
        if len(blob.data) <= INLINE_LIMIT:
            return blob
        return await self._blobs.put_bytes(blob.data)

    # --- changing ---

    async def cancel(self, job: JobId) -> Head:
        """Asks a job to end; cancelling twice is the same as once."""
        return await self.to_the_end(self._cancelling.cancel(job))

    async def extend(self, job: JobId, by_s: float) -> Head:
        """More time for a job that waits or runs, in this attempt and in those that follow."""
        return await self.to_the_end(self._extending.extend(job, by_s))

    async def cancel_batch(self, batch: str) -> int:
        """Asks everything of a batch that lives to end, the oldest first; returns how many."""
        return await self.to_the_end(self._cancelling.cancel_batch(batch))

    async def retry(self, job: JobId, asked: Retry = Retry()) -> JobId:  # noqa: B008 (it is frozen)
        """An ended job again, as a new job. One that did not succeed goes on from its last
        checkpoint, unless it is to begin from the start."""
        head = self._store.head(job)
        if not head.state.ended:
            raise Conflict(f"Job {job} is {head.state}; only an ended job is retried.", job_id=job)
        document = decode_document(self._store.journal.document(head.submitted_seq))
        document = replace(document, duration_s=head.duration_s)
        goes_on = not asked.from_start and head.state is not State.SUCCEEDED
        checkpoint = await self._last_checkpoint(head, document) if goes_on else ""
        return (await self.submit([asked.of(job, document, checkpoint)]))[0].job

    async def _last_checkpoint(self, head: Head, document: Job) -> str:
        """Of the job, or of the one that it went on from; empty where its bytes are gone."""
        last = document.checkpoint
        async for page in self._store.pages(head, 0):
            stored = [fact.sha256 for _, fact in page if isinstance(fact, CheckpointStored)]
            last = stored[-1] if stored else last
        return last if last and self._blobs.has(last) else ""

    async def to_front(self, job: JobId) -> Head:
        """A waiting job before all others of its class and priority, also after a restart."""
        try:
            (change,) = await self._store.append([JobMovedToFront(job=job, at=time.time())])
        except Conflict:
            state = self._store.head(job).state
            raise Conflict(
                f"Job {job} is {state}; only a waiting job is moved to the front.", job_id=job
            ) from None
        log.info("job_moved_to_front", job=job)
        return change.head

    def condition(self) -> tuple[str, str]:
        """How the controller is, in one word and a sentence: the same at every door."""
        damage, full = self._store.snapshots.damage, self._loop.full
        trouble = " ".join(self._loop.fleet.trouble().values())
        worst = {"stopping": self.stopping, "damaged": damage, "full": full, "degraded": trouble}
        word = next((word for word, is_so in worst.items() if is_so), "ok")
        return word, " ".join(filter(None, (damage, full, trouble)))

    async def find(self, text: str) -> JobId:
        """The job an id, or an unambiguous beginning of one, or `last` means."""
        if not (text.isascii() and text.isalnum()):
            raise JobNotFound(f"{text[:80]!r} is no job's id. `corral jobs --all` lists them.")
        heads, journal = self._store.world.heads, self._store.journal
        if text in heads or journal.ended(text) is not None:
            return text
        if text == "last":
            newest = max(next(reversed(heads), ""), journal.ended_newest() or "")
            if not newest:
                raise JobNotFound("There is no job yet. Submit one with `corral run`.")
            return newest
        found: set[JobId] = set()
        if len(text) >= 3:
            found = await self._living_by_prefix(text)
            found.update(journal.ended_by_prefix(text))
        if len(found) == 1:
            return found.pop()
        if found:
            raise JobNotFound(f"More than one job begins with {text[:80]}; give more of its id.")
        raise JobNotFound(
            f"There is no job {text[:80]}. `corral jobs --all` lists them.", job_id=text[:80]
        )

    async def _living_by_prefix(self, prefix: str) -> set[JobId]:
        """A few of the living whose ids begin so, enough to see that one is not alone."""
        found: set[JobId] = set()
        living = list(self._store.world.heads)
        for start in range(0, len(living), LOOKED_AT_ONCE):
            some = living[start : start + LOOKED_AT_ONCE]
            found.update(job for job in some if job.startswith(prefix))
            if len(found) > 1:
                break
            await asyncio.sleep(0)
        return found


def _digest_as(job: Job, job_id: JobId) -> str:
    """The digest of an image job, if this is its id: built again, it is the same byte for byte."""
    assert isinstance(job.work, PipelineCall)
    record = replace(job.work.record, job_id=job_id)
    return document_digest(encode_document(replace(job, work=PipelineCall(record))))


def _rides_along(job: Job) -> bool:
    return all(blob.data is not None and len(blob.data) <= INLINE_LIMIT for blob in job.blobs())
