"""The gRPC service `corral.v1.Orchestrator`: what SDK and CLI speak."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import grpc
import structlog

from corral import correlation
from corral.api import corral_pb2 as pb
from corral.api.auth import bearer
from corral.api.correlation import refused
from corral.api.roles import METHODS
from corral.api.service import ERROR_KEY
from corral.api.streams import Streams
from corral.api.submissions import job_of, jobs_of
from corral.api.views import (
    built_view,
    event_of,
    explanation_view,
    preset_view,
    queue_view,
    rating_view,
    run_view,
    shown,
    token_view,
    views_of,
    whole_batch_view,
    worker_views,
)
from corral.controller.access import Access
from corral.controller.artifacts import Artifacts
from corral.controller.assets import Assets
from corral.controller.backup import Backups
from corral.controller.batches import look
from corral.controller.blobs import Blobs
from corral.controller.feed import Cursor, Feed, Page, Seen
from corral.controller.herd import Herd
from corral.controller.kept import artifact_of, result_of
from corral.controller.learning import Chosen, Learnings
from corral.controller.learning_runs import LearningRuns
from corral.controller.listing import Filters, Listing
from corral.controller.loop import Loop
from corral.controller.plans import Plans
from corral.controller.queue import Queue
from corral.controller.store import Store
from corral.controller.vault import Vault
from corral.core.access import Caller, Role
from corral.core.errors import BlobNotFound, CorralError, InvalidJob, InvalidRequest
from corral.core.events import AttemptPlaced, AttemptStarted, JobSubmitted
from corral.core.job import QueueClass
from corral.core.worker import Worker
from corral.settings import LimitSettings as Limits

log = structlog.get_logger()

Context = Any
"""grpc.aio's ServicerContext, whose type parameters say nothing here."""

Request = TypeVar("Request")
Reply = TypeVar("Reply")

MAX_HOLD_S = 10.0
FEW, ASKED_S = 16, 0.1
STATES = (JobSubmitted, AttemptPlaced, AttemptStarted)

_STATUS = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    410: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
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


def _checked(request: Request) -> Request:
    if request is None:
        raise InvalidRequest("This is no message that the method takes; see corral.proto.")
    return request


def answers(
    method: Callable[[Any, Request, Context], Awaitable[Reply]],
) -> Callable[[Any, Request, Context], Awaitable[Reply]]:
    """Checks the caller's role and turns errors into statuses, for a method with one answer."""
    role = METHODS[method.__name__]

    @wraps(method)
    async def guarded(self: Any, request: Request, context: Context) -> Reply:
        correlation_id = _enter(context)
        try:
            self.caller(context).needs(role)
            _checked(request)
            if method.__name__ != "SubmitJobs":
                self.asked_at = time.monotonic()
            return await method(self, request, context)
        except CorralError as error:
            await _abort(context, error, method.__name__, correlation_id)
            raise

    return guarded


def streams(
    method: Callable[[Any, Request, Context], AsyncIterator[Reply]],
) -> Callable[[Any, Request, Context], AsyncIterator[Reply]]:
    """The same for a method whose answer streams; there may be only so many of them at once."""
    role = METHODS[method.__name__]

    @wraps(method)
    async def guarded(self: Any, request: Request, context: Context) -> AsyncIterator[Reply]:
        correlation_id = _enter(context)
        try:
            self.caller(context).needs(role)
            _checked(request)
            with self.streams.one():
                async for reply in method(self, request, context):
                    yield reply
        except CorralError as error:
            await _abort(context, error, method.__name__, correlation_id)

    return guarded


class Orchestrator:
    def __init__(
        self,
        *,
        access: Access,
        herd: Herd,
        store: Store,
        blobs: Blobs,
        feed: Feed,
        queue: Queue,
        loop: Loop,
        vault: Vault,
        assets: Assets,
        artifacts: Artifacts,
        version: str,
        started_at: float,
        package_limit: int,
        limits: Limits,
        listing: Listing,
        streams: Streams,
        backups: Backups,
        plans: Plans,
        learnings: Learnings,
        learning_runs: LearningRuns,
    ) -> None:
        self.asked_at = 0.0
        self._herd = herd
        self._access, self._store, self._blobs, self._feed = access, store, blobs, feed
        self._queue, self._loop, self._vault = queue, loop, vault
        self._assets, self._artifacts = assets, artifacts
        self._version, self._started_at = version, started_at
        self._package_limit, self._limits, self._backups = package_limit, limits, backups
        self._listing, self.streams, self._plans = listing, streams, plans
        self._learnings, self._runs = learnings, learning_runs

    def caller(self, context: Context) -> Caller:
        metadata = dict(context.invocation_metadata() or ())
        return self._access.caller(bearer(metadata.get("authorization")))

    def is_asked(self) -> bool:
        """Whether somebody waits for short answers, or did a moment ago. Who submits very many at
        once is in no such hurry."""
        return time.monotonic() - self.asked_at < ASKED_S

    # --- submitting and watching ---

    @streams
    async def SubmitJob(  # noqa: N802 (the name in the .proto)
        self, request: pb.JobSubmission, context: Context
    ) -> AsyncIterator[pb.JobEvent]:
        job = job_of(request, QueueClass.INTERACTIVE, self._limits, self.caller(context))
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
        return await self.submit(request, self.caller(context))

    async def submit(self, request: pb.SubmitJobsRequest, caller: Caller) -> pb.SubmitJobsReply:
        """What both doors for submissions do."""
        if len(request.calls) + len(request.jobs) <= FEW:
            self.asked_at = time.monotonic()
        jobs = jobs_of(request, QueueClass.BATCH, self._limits, caller)
        held = request.hold_s > 0 and len(jobs) == 1
        accepted = await self._queue.submit(jobs, held=held)
        reply = pb.SubmitJobsReply(
            job_ids=[one.job for one in accepted],
            warnings=sorted({one.warning for one in accepted if one.warning}),
        )
        if held:
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
        return shown(self._store, self._feed, job)

    @answers
    async def ListJobs(  # noqa: N802
        self, request: pb.ListJobsRequest, context: Context
    ) -> pb.ListJobsReply:
        filters = Filters.checked(
            states=request.states,
            active=request.active,
            queue_class=request.queue_class,
            worker=request.worker,
            batch=request.batch,
            labels=tuple(request.labels),
            user=request.user,
            since=request.since,
            until=request.until,
            text=request.text,
        )
        limit = min(request.limit or 100, self._limits.page)
        found = await self._listing.page(filters, before=request.before, limit=limit)
        return pb.ListJobsReply(
            jobs=[view async for view in views_of(self._store, self._feed, found)]
        )

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
        self, request: pb.RetryRequest, context: Context
    ) -> pb.JobView:
        caller, job = self.caller(context), self._queue.find(request.job_id)
        user = None if caller.role is Role.ADMIN else caller.name
        again = await self._queue.retry(job, user=user, worker=request.worker, apart=request.apart)
        return self._view(again)

    @answers
    async def MoveToFront(  # noqa: N802
        self, request: pb.JobRequest, context: Context
    ) -> pb.JobView:
        job = self._queue.find(request.job_id)
        await self._queue.to_front(job)
        return self._view(job)

    @answers
    async def ExplainJob(  # noqa: N802
        self, request: pb.JobRequest, context: Context
    ) -> pb.Explanation:
        job = self._queue.find(request.job_id)
        return await explanation_view(self._store, self._loop, job)

    @answers
    async def ListWorkers(  # noqa: N802
        self, request: pb.ListWorkersRequest, context: Context
    ) -> pb.ListWorkersReply:
        seats = self._store.world.seats(self._loop.workers())
        return pb.ListWorkersReply(workers=worker_views(seats))

    @answers
    async def ChangeWorker(  # noqa: N802
        self, request: pb.ChangeWorkerRequest, context: Context
    ) -> pb.WorkerView:
        has = request.HasField
        changed = await self._herd.change(
            request.worker,
            new_name=request.name if has("name") else None,
            draining=request.draining if has("draining") else None,
            labels=list(request.labels.labels) if has("labels") else None,
        )
        return self._worker(changed)

    @answers
    async def RevokeWorker(  # noqa: N802
        self, request: pb.RevokeWorkerRequest, context: Context
    ) -> pb.WorkerView:
        return self._worker(await self._herd.revoke(request.worker))

    def _worker(self, worker: Worker) -> pb.WorkerView:
        return worker_views(self._store.world.seats([worker]))[0]

    @answers
    async def Invite(  # noqa: N802
        self, request: pb.InviteRequest, context: Context
    ) -> pb.InviteReply:
        if request.client:
            client = await self._herd.invite_client(
                request.client, request.role or Role.SUBMIT, request.expires_in
            )
            return pb.InviteReply(invitation=client.text())
        worker = await self._herd.invite_worker(renew=request.renew)
        pin = self._herd.pin()
        return pb.InviteReply(
            invitation=worker.text(), shell=worker.shell(pin), powershell=worker.powershell(pin)
        )

    @answers
    async def ListJoinRequests(  # noqa: N802
        self, request: pb.ListJoinRequestsRequest, context: Context
    ) -> pb.ListJoinRequestsReply:
        requests = self._herd.requests
        return pb.ListJoinRequestsReply(
            requests=[
                pb.JoinRequestView(
                    name=one.name, address=one.address, code=one.code, age_s=requests.age(one)
                )
                for one in requests.pending()
            ]
        )

    @answers
    async def ConfirmJoin(  # noqa: N802
        self, request: pb.ConfirmJoinRequest, context: Context
    ) -> pb.ConfirmJoinReply:
        return pb.ConfirmJoinReply(name=(await self._herd.confirm(request.code)).name)

    # --- steering the whole ---

    @answers
    async def GetQueue(  # noqa: N802
        self, request: pb.QueueRequest, context: Context
    ) -> pb.QueueView:
        return queue_view(self._store.world, self._loop.pause)

    @answers
    async def PauseQueue(  # noqa: N802
        self, request: pb.QueueRequest, context: Context
    ) -> pb.QueueView:
        await self._loop.hold(True, by=self.caller(context).name)
        return queue_view(self._store.world, self._loop.pause)

    @answers
    async def ResumeQueue(  # noqa: N802
        self, request: pb.QueueRequest, context: Context
    ) -> pb.QueueView:
        await self._loop.hold(False, by=self.caller(context).name)
        return queue_view(self._store.world, self._loop.pause)

    @answers
    async def CreateToken(  # noqa: N802
        self, request: pb.CreateTokenRequest, context: Context
    ) -> pb.CreateTokenReply:
        token, kept = await self._access.create(request.name, request.role, request.expires_in)
        return pb.CreateTokenReply(token=token, view=token_view(kept))

    @answers
    async def ListTokens(  # noqa: N802
        self, request: pb.ListTokensRequest, context: Context
    ) -> pb.ListTokensReply:
        return pb.ListTokensReply(tokens=map(token_view, self._access.tokens()))

    @answers
    async def RevokeToken(  # noqa: N802
        self, request: pb.RevokeTokenRequest, context: Context
    ) -> pb.TokenView:
        return token_view(await self._access.revoke(request.name))

    @answers
    async def HealthCheck(  # noqa: N802
        self, request: pb.HealthRequest, context: Context
    ) -> pb.HealthReply:
        world = self._store.world
        workers = self._loop.workers()
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
        chunks = (_checked(chunk).data async for chunk in request)
        blob = await self._blobs.put(chunks, limit=self._package_limit)
        return pb.BlobRef(sha256=blob.sha256, size=blob.size)

    @answers
    async def FindAsset(  # noqa: N802
        self, request: pb.AssetRequest, context: Context
    ) -> pb.AssetReply:
        found = await self._assets.find(request.sha256, request.size, request.path)
        if found is not None:
            return pb.AssetReply(known=True, sha256=found.sha256, size=found.size, path=found.path)
        self._queue.check_room()
        return pb.AssetReply(put_url=await self._assets.place(request.sha256, request.size))

    @answers
    async def PutAsset(  # noqa: N802
        self, request: AsyncIterator[pb.Chunk], context: Context
    ) -> pb.BlobRef:
        self._queue.check_room()
        blob = await self._assets.put(_checked(chunk).data async for chunk in request)
        return pb.BlobRef(sha256=blob.sha256, size=blob.size)

    @streams
    async def GetBlob(  # noqa: N802
        self, request: pb.BlobRequest, context: Context
    ) -> AsyncIterator[pb.Chunk]:
        job = self._queue.find(request.job_id)
        blob = None
        if request.name == "result":
            with contextlib.suppress(BlobNotFound):
                blob = result_of(self._store, job)
        if blob is None:
            async for chunk in self._artifacts.read(artifact_of(self._store, job, request.name)):
                yield pb.Chunk(data=chunk)
            return
        if blob.data is not None:
            yield pb.Chunk(data=blob.data)
            return
        async for chunk in self._blobs.read(blob.sha256):
            yield pb.Chunk(data=chunk)

    @streams
    async def Backup(  # noqa: N802
        self, request: pb.BackupRequest, context: Context
    ) -> AsyncIterator[pb.BackupChunk]:
        async with contextlib.aclosing(self._backups.stream()) as pieces:
            async for piece in pieces:
                yield pb.BackupChunk(data=piece.data, done=piece.done, total=piece.total)

    # --- image batches ---

    @streams
    async def BuildBatch(  # noqa: N802
        self, request: pb.BuildBatchRequest, context: Context
    ) -> AsyncIterator[pb.BuildBatchReply]:
        plans = self._plans
        built = await plans.build(request.plan, request.key, self.caller(context))
        yield built_view(built)
        if not request.dry_run:
            yield built_view(await plans.submit(built), submitted=True)
            return
        async for lines in plans.lines(built):
            yield pb.BuildBatchReply(records=lines)

    @answers
    async def GetBatch(  # noqa: N802
        self, request: pb.BatchRequest, context: Context
    ) -> pb.BatchView:
        found = await look(request.batch, self._listing, self._store.world, self._loop)
        return whole_batch_view(found)

    @answers
    async def SavePreset(  # noqa: N802
        self, request: pb.SavePresetRequest, context: Context
    ) -> pb.PresetView:
        saved = await self._plans.presets.save(request.name, request.value)
        return preset_view(saved.name, saved.saved_at, saved.value)

    @answers
    async def ListPresets(  # noqa: N802
        self, request: pb.ListPresetsRequest, context: Context
    ) -> pb.ListPresetsReply:
        listed = [preset_view(*one) for one in self._plans.presets.names()]
        return pb.ListPresetsReply(presets=listed)

    @answers
    async def GetPreset(  # noqa: N802
        self, request: pb.PresetRequest, context: Context
    ) -> pb.PresetView:
        found = self._plans.presets.get(request.name)
        return preset_view(found.name, found.saved_at, found.value)

    @answers
    async def RemovePreset(  # noqa: N802
        self, request: pb.PresetRequest, context: Context
    ) -> pb.PresetView:
        found = await self._plans.presets.remove(request.name)
        return preset_view(found.name, found.saved_at, found.value)

    # --- secrets: values go in and never come out. All three are for the operator alone.

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

    # --- learning ---

    @answers
    async def RateJob(  # noqa: N802
        self, request: pb.RateJobRequest, context: Context
    ) -> pb.RatingView:
        job = self._learnings.find(request.job_id, self._queue.find)
        by = self.caller(context).name
        return rating_view(await self._learnings.rate(job, request.rating, request.note, by=by))

    @streams
    async def ListLearnings(  # noqa: N802
        self, request: pb.ListLearningsRequest, context: Context
    ) -> AsyncIterator[pb.LearningLines]:
        chosen = Chosen(request.since, request.until, request.batch, request.run)
        async for lines in self._learnings.exported(chosen):
            yield pb.LearningLines(data=lines)

    @answers
    async def StartLearningRun(  # noqa: N802
        self, request: pb.LearningPlan, context: Context
    ) -> pb.LearningRunView:
        caller = self.caller(context)
        started = await self._runs.start(request.plan, caller, dry_run=request.dry_run)
        return run_view(started.run, started)

    @answers
    async def GetLearningRun(  # noqa: N802
        self, request: pb.LearningRunRequest, context: Context
    ) -> pb.LearningRunView:
        shown = await self._runs.show(request.name)
        return run_view(shown.run, shown)

    @answers
    async def ListLearningRuns(  # noqa: N802
        self, request: pb.ListLearningRunsRequest, context: Context
    ) -> pb.ListLearningRunsReply:
        return pb.ListLearningRunsReply(runs=[run_view(run) for run in self._runs.all()])
