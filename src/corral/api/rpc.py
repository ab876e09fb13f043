"""The gRPC service `corral.v1.Orchestrator`: what SDK and CLI speak."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from functools import wraps
from typing import Any, TypeVar

import grpc
import structlog

from corral import correlation
from corral.api import corral_pb2 as pb
from corral.api.auth import check_token
from corral.api.correlation import refused
from corral.api.service import ERROR_KEY
from corral.api.submissions import job_of, jobs_like
from corral.api.views import event_of, job_view, worker_views
from corral.controller.backup import Backups
from corral.controller.blobs import Blobs
from corral.controller.feed import Cursor, Feed, Page, Seen
from corral.controller.loop import Loop
from corral.controller.queue import Queue
from corral.controller.store import Store
from corral.controller.vault import Vault
from corral.controller.why import explain
from corral.core.errors import BlobNotFound, CorralError, InvalidJob, JobNotFound
from corral.core.events import (
    ArtifactStored,
    AttemptPlaced,
    AttemptStarted,
    JobSubmitted,
    JobSucceeded,
)
from corral.core.job import QueueClass, State

log = structlog.get_logger()

Context = Any
"""grpc.aio's ServicerContext, whose type parameters say nothing here."""

Request = TypeVar("Request")
Reply = TypeVar("Reply")

MAX_BATCH = 10_000
MAX_PAGE = 1000
CHUNK = 1 << 20
MAX_HOLD_S = 10.0
STATES = (JobSubmitted, AttemptPlaced, AttemptStarted)

_STATUS = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    410: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    503: grpc.StatusCode.UNAVAILABLE,
    507: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def _enter(context: Context) -> str:
    """The call's correlation id, from its metadata or new; the answer names it too."""
    told = next((v for k, v in context.invocation_metadata() or () if k == correlation.KEY), "")
    chosen = correlation.enter(told)
    context.set_trailing_metadata(((correlation.KEY, chosen),))
    return chosen


async def _abort(context: Context, error: CorralError, call: str, correlation_id: str) -> None:
    code = _STATUS.get(error.status, grpc.StatusCode.INTERNAL)
    refused(error, call)
    trailer = ((ERROR_KEY, json.dumps(error.view())), (correlation.KEY, correlation_id))
    await context.abort(code, error.message, trailing_metadata=trailer)


def answers(
    method: Callable[[Any, Request, Context], Awaitable[Reply]],
) -> Callable[[Any, Request, Context], Awaitable[Reply]]:
    """Checks the token and turns errors into statuses, for a method with one answer."""

    @wraps(method)
    async def guarded(self: Any, request: Request, context: Context) -> Reply:
        correlation_id = _enter(context)
        try:
            self.check(context)
            return await method(self, request, context)
        except CorralError as error:
            await _abort(context, error, method.__name__, correlation_id)
            raise

    return guarded


def streams(
    method: Callable[[Any, Request, Context], AsyncIterator[Reply]],
) -> Callable[[Any, Request, Context], AsyncIterator[Reply]]:
    """The same for a method whose answer streams."""

    @wraps(method)
    async def guarded(self: Any, request: Request, context: Context) -> AsyncIterator[Reply]:
        correlation_id = _enter(context)
        try:
            self.check(context)
            async for reply in method(self, request, context):
                yield reply
        except CorralError as error:
            await _abort(context, error, method.__name__, correlation_id)

    return guarded


class Orchestrator:
    def __init__(
        self,
        *,
        token: str,
        store: Store,
        blobs: Blobs,
        feed: Feed,
        queue: Queue,
        loop: Loop,
        vault: Vault,
        version: str,
        started_at: float,
        package_limit: int,
        backups: Backups,
    ) -> None:
        self._token, self._store, self._blobs, self._feed = token, store, blobs, feed
        self._queue, self._loop, self._vault = queue, loop, vault
        self._version, self._started_at = version, started_at
        self._package_limit, self._backups = package_limit, backups

    def check(self, context: Context) -> None:
        metadata = dict(context.invocation_metadata() or ())
        check_token(metadata.get("authorization"), self._token)

    # --- submitting and watching ---

    @streams
    async def SubmitJob(  # noqa: N802 (the name in the .proto)
        self, request: pb.JobSubmission, context: Context
    ) -> AsyncIterator[pb.JobEvent]:
        job = job_of(request, QueueClass.INTERACTIVE)
        accepted = (await self._queue.submit([job]))[0]
        async for seen in self._feed.watch(accepted.job, Cursor()):
            for event in self._events(seen):
                if accepted.warning and event.HasField("state") and not event.state.message:
                    event.state.message, accepted = accepted.warning, type(accepted)(accepted.job)
                yield event

    @answers
    async def SubmitJobs(  # noqa: N802
        self, request: pb.SubmitJobsRequest, context: Context
    ) -> pb.SubmitJobsReply:
        count = len(request.jobs) + len(request.calls)
        if not 0 < count <= MAX_BATCH:
            raise InvalidJob(f"Submit 1 to {MAX_BATCH:,} jobs at once; got {count:,}.")
        jobs = [job_of(sent, QueueClass.BATCH) for sent in request.jobs]
        if request.calls:
            jobs += jobs_like(request.like, request.calls, QueueClass.BATCH)
        accepted = await self._queue.submit(jobs)
        reply = pb.SubmitJobsReply(
            job_ids=[one.job for one in accepted],
            warnings=sorted({one.warning for one in accepted if one.warning}),
        )
        if request.hold_s > 0 and len(accepted) == 1:
            seen = await self._feed.watch_briefly(accepted[0].job, min(request.hold_s, MAX_HOLD_S))
            if seen:
                reply.cursor = str(seen[-1].cursor)
            wanted = [one for one in seen if not isinstance(one.fact, STATES)]
            reply.events.extend(self._events(wanted))
        return reply

    @streams
    async def WatchJobs(  # noqa: N802
        self, request: pb.WatchRequest, context: Context
    ) -> AsyncIterator[pb.JobEvents]:
        cursor = Cursor.parse(request.after)
        if bool(request.job_id) == bool(request.batch):
            raise InvalidJob("Watch one job (job_id) or one batch (batch).")
        if request.batch:
            source = self._feed.watch_batch(request.batch, cursor)
        elif request.ends_only:
            source = self._feed.watch_end(self._queue.find(request.job_id))
        else:
            job = self._queue.find(request.job_id)
            source = self._feed.watch(job, cursor, until_now=request.until_now)
        async for seen in source:
            if not isinstance(seen, Page):
                yield pb.JobEvents(events=self._events(seen))
                continue
            if seen.encoded is None:
                seen.encoded = pb.JobEvents(events=self._events(seen))
            yield seen.encoded

    def _events(self, seen: Sequence[Seen]) -> list[pb.JobEvent]:
        names = self._store.world.names
        return [event for one in seen if (event := event_of(one, names)) is not None]

    # --- looking and changing ---

    @answers
    async def GetJobStatus(  # noqa: N802
        self, request: pb.JobRequest, context: Context
    ) -> pb.JobView:
        return self._view(self._queue.find(request.job_id))

    def _view(self, job: str) -> pb.JobView:
        head = self._store.head(job)
        return job_view(self._store, head, self._feed.progress(head))

    @answers
    async def ListJobs(  # noqa: N802
        self, request: pb.ListJobsRequest, context: Context
    ) -> pb.ListJobsReply:
        limit = min(request.limit or 100, MAX_PAGE)
        states = [State(state) for state in request.states if state in set(State)]
        if len(states) != len(request.states):
            raise InvalidJob(f"The states are: {', '.join(State)}.")
        living = [
            head.id
            for head in self._store.world.heads.values()
            if (not states or head.state in states)
            and (not request.batch or head.batch == request.batch)
            and (not request.before or head.id < request.before)
        ]
        found = sorted(living, reverse=True)[:limit]
        if not request.active:
            ended = self._store.journal.ended_latest(
                before=request.before, batch=request.batch, states=states, limit=limit
            )
            found = sorted([*found, *(row.job for row in ended)], reverse=True)[:limit]
        views = []
        for job in found:
            with suppress(JobNotFound):  # pruned this very moment
                views.append(self._view(job))
        return pb.ListJobsReply(jobs=views)

    @answers
    async def CancelJob(  # noqa: N802
        self, request: pb.JobRequest, context: Context
    ) -> pb.JobView:
        job = self._queue.find(request.job_id)
        await self._queue.cancel(job)
        return self._view(job)

    @answers
    async def CancelBatch(  # noqa: N802
        self, request: pb.BatchRequest, context: Context
    ) -> pb.CancelBatchReply:
        if not request.batch:
            raise InvalidJob("Name the batch to cancel.")
        return pb.CancelBatchReply(cancelled=await self._queue.cancel_batch(request.batch))

    @answers
    async def RetryJob(  # noqa: N802
        self, request: pb.JobRequest, context: Context
    ) -> pb.JobView:
        return self._view(await self._queue.retry(self._queue.find(request.job_id)))

    @answers
    async def ExplainJob(  # noqa: N802
        self, request: pb.JobRequest, context: Context
    ) -> pb.Explanation:
        job = self._queue.find(request.job_id)
        workers = await self._loop.workers()
        paused, full = self._loop.paused, self._loop.full
        reason = explain(self._store, job, workers, paused=paused, full=full)
        return pb.Explanation(
            job_id=job,
            state=reason.state,
            summary=reason.summary,
            workers=[pb.WhyWorker(worker=name, reason=why) for name, why in reason.workers.items()],
            history=reason.history,
        )

    @answers
    async def ListWorkers(  # noqa: N802
        self, request: pb.ListWorkersRequest, context: Context
    ) -> pb.ListWorkersReply:
        seats = self._store.world.seats(await self._loop.workers())
        return pb.ListWorkersReply(workers=worker_views(seats))

    @answers
    async def HealthCheck(  # noqa: N802
        self, request: pb.HealthRequest, context: Context
    ) -> pb.HealthReply:
        world = self._store.world
        workers = await self._loop.workers()
        return pb.HealthReply(
            status="stopping" if self._queue.stopping else "full" if self._loop.full else "ok",
            reason=self._loop.full,
            version=self._version,
            workers=sum(worker.connected for worker in workers),
            queued=sum(world.waiting.values()),
            running=sum(len(held) for held in world.held.values()),
            started_at=self._started_at,
        )

    # --- bytes ---

    @answers
    async def PutPackage(  # noqa: N802
        self, request: AsyncIterator[pb.Chunk], context: Context
    ) -> pb.BlobRef:
        self._queue.check_room()
        chunks = (chunk.data async for chunk in request)
        blob = await self._blobs.put(chunks, limit=self._package_limit)
        return pb.BlobRef(sha256=blob.sha256, size=blob.size)

    @streams
    async def GetBlob(  # noqa: N802
        self, request: pb.BlobRequest, context: Context
    ) -> AsyncIterator[pb.Chunk]:
        job = self._queue.find(request.job_id)
        for record in reversed(self._store.history(self._store.head(job))):
            fact = record.fact()
            sha256 = None
            if request.name == "result" and isinstance(fact, JobSucceeded) and fact.result:
                if fact.result.data is not None:
                    yield pb.Chunk(data=fact.result.data)
                    return
                sha256 = fact.result.sha256
            elif isinstance(fact, ArtifactStored) and fact.name == request.name:
                sha256 = fact.file_sha256
            if sha256 is not None:
                async for chunk in self._blobs.read(sha256):
                    yield pb.Chunk(data=chunk)
                return
        raise BlobNotFound(
            f"Job {job} has nothing named {request.name[:200]!r}. `corral show {job}` lists its "
            "artifacts.",
            job_id=job,
        )

    @streams
    async def Backup(  # noqa: N802
        self, request: pb.BackupRequest, context: Context
    ) -> AsyncIterator[pb.BackupChunk]:
        async with aclosing(self._backups.stream()) as pieces:
            async for piece in pieces:
                yield pb.BackupChunk(data=piece.data, done=piece.done, total=piece.total)

    # --- secrets: values go in and never come out. All three are for the operator alone: where
    # tokens have roles, each of them asks for `admin`.

    @answers
    async def SetSecret(  # noqa: N802
        self, request: pb.SetSecretRequest, context: Context
    ) -> pb.SecretView:
        set_at = await self._vault.set(request.name, request.value)
        return pb.SecretView(name=request.name, set_at=set_at)

    @answers
    async def ListSecrets(  # noqa: N802
        self, request: pb.ListSecretsRequest, context: Context
    ) -> pb.ListSecretsReply:
        listed = [pb.SecretView(name=name, set_at=at) for name, at in self._vault.listed()]
        return pb.ListSecretsReply(secrets=listed)

    @answers
    async def RemoveSecret(  # noqa: N802
        self, request: pb.RemoveSecretRequest, context: Context
    ) -> pb.SecretView:
        set_at = await self._vault.remove(request.name)
        return pb.SecretView(name=request.name, set_at=set_at)
