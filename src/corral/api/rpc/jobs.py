"""Submitting jobs, watching, looking at and changing them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from corral.api.rpc.guard import Calls, answers, streams
from corral.api.submissions import job_of, jobs_of
from corral.api.views import event_of, explanation_view, shown, shown_in_full, views_of
from corral.contract import corral_pb2 as pb
from corral.controller.history.listing import JobFilters
from corral.controller.jobs.retrying import Retry
from corral.controller.output.pages import Cursor, Page, Seen
from corral.core.access import Caller, Role
from corral.core.errors import InvalidJob
from corral.core.events import AttemptPlaced, AttemptStarted, JobSubmitted
from corral.core.job import QueueClass

MAX_HOLD_S = 10.0
SMALL_SUBMISSION = 16
STATES = (JobSubmitted, AttemptPlaced, AttemptStarted)


class JobCalls(Calls):
    @streams
    async def SubmitJob(
        self, request: pb.JobSubmission, caller: Caller
    ) -> AsyncIterator[pb.JobEvent]:
        job = job_of(request, QueueClass.INTERACTIVE, self._parts.limits, caller)
        accepted = (await self._parts.queue.submit([job]))[0]
        async for seen in self._parts.feed.watch(accepted.job, Cursor()):
            for event in self._events(seen):
                if accepted.warning and event.HasField("state") and not event.state.message:
                    event.state.message, accepted = accepted.warning, type(accepted)(accepted.job)
                yield event

    @answers
    async def SubmitJobs(self, request: pb.SubmitJobsRequest, caller: Caller) -> pb.SubmitJobsReply:
        return await self.submit(request, caller)

    async def submit(self, request: pb.SubmitJobsRequest, caller: Caller) -> pb.SubmitJobsReply:
        """What both doors for submissions do."""
        many = len(request.calls) + len(request.jobs) > SMALL_SUBMISSION
        if many:
            await self._parts.turns.take()
        jobs = jobs_of(request, QueueClass.BATCH, self._parts.limits, caller)
        if many:
            await self._parts.turns.take()
        held = request.hold_s > 0 and len(jobs) == 1
        accepted = await self._parts.queue.submit(jobs, held=held)
        reply = pb.SubmitJobsReply(
            job_ids=[one.job for one in accepted],
            warnings=sorted({one.warning for one in accepted if one.warning}),
        )
        if held:
            seen = await self._parts.feed.watch_briefly(
                accepted[0].job, min(request.hold_s, MAX_HOLD_S)
            )
            if seen:
                reply.cursor = str(seen[-1].cursor)
            wanted = [one for one in seen if not isinstance(one.fact, STATES)]
            reply.events.extend(self._events(wanted))
        return reply

    @streams
    async def WatchJobs(self, request: pb.WatchRequest) -> AsyncIterator[pb.JobEvents]:
        cursor = Cursor.parse(request.after)
        if bool(request.job_id) == bool(request.batch):
            raise InvalidJob("Watch one job (job_id) or one batch (batch).")
        source: AsyncIterator[Sequence[Seen]]
        if request.batch:
            source = self._parts.feed.watch_batch(request.batch, cursor)
        elif request.ends_only:
            source = self._parts.feed.watch_end(await self._parts.queue.find(request.job_id))
        else:
            job = await self._parts.queue.find(request.job_id)
            source = self._parts.feed.watch(job, cursor, until_now=request.until_now)
        async for seen in source:
            if not isinstance(seen, Page):
                yield pb.JobEvents(events=self._events(seen))
                continue
            if "events" not in seen.encoded:
                seen.encoded["events"] = pb.JobEvents(events=self._events(seen))
            yield seen.encoded["events"]

    def _events(self, seen: Sequence[Seen]) -> list[pb.JobEvent]:
        names = self._parts.store.world.names
        return [event for one in seen if (event := event_of(one, names)) is not None]

    # --- looking and changing ---

    @answers
    async def GetJobStatus(self, request: pb.JobRequest) -> pb.JobView:
        job = await self._parts.queue.find(request.job_id)
        return shown_in_full(self._parts, job)

    @answers
    async def ListJobs(self, request: pb.ListJobsRequest) -> pb.ListJobsReply:
        asked = {name: getattr(request, name) for name in JobFilters.__struct_fields__}
        filters = JobFilters.checked(**{**asked, "labels": tuple(request.labels)})
        limit = min(request.limit or 100, self._parts.limits.page)
        found = await self._parts.listing.page(filters, before=request.before, limit=limit)
        return pb.ListJobsReply(jobs=[view async for view in views_of(self._parts, found)])

    @answers
    async def CancelJob(self, request: pb.JobRequest) -> pb.JobView:
        job = await self._parts.queue.find(request.job_id)
        await self._parts.queue.cancel(job)
        return shown(self._parts, job)

    @answers
    async def CancelBatch(self, request: pb.BatchRequest) -> pb.CancelBatchReply:
        if not request.batch:
            raise InvalidJob("Name the batch to cancel.")
        return pb.CancelBatchReply(cancelled=await self._parts.queue.cancel_batch(request.batch))

    @answers
    async def RetryJob(self, request: pb.RetryRequest, caller: Caller) -> pb.JobView:
        job = await self._parts.queue.find(request.job_id)
        asked = Retry.asked(
            user=None if caller.role is Role.ADMIN else caller.name,
            is_owners=caller.is_owner,
            worker=request.worker,
            apart=request.apart,
            from_start=request.from_start,
            duration_s=request.duration if request.HasField("duration") else None,
            retries=request.retries if request.HasField("retries") else None,
            memory_gb=request.memory_gb if request.HasField("memory_gb") else None,
            backend=request.backend,
        )
        return shown(self._parts, await self._parts.queue.retry(job, asked))

    @answers
    async def ExtendJob(self, request: pb.ExtendRequest) -> pb.JobView:
        job = await self._parts.queue.find(request.job_id)
        await self._parts.queue.extend(job, request.by)
        return shown(self._parts, job)

    @answers
    async def MoveToFront(self, request: pb.JobRequest) -> pb.JobView:
        job = await self._parts.queue.find(request.job_id)
        await self._parts.queue.to_front(job)
        return shown(self._parts, job)

    @answers
    async def ExplainJob(self, request: pb.JobRequest) -> pb.Explanation:
        job = await self._parts.queue.find(request.job_id)
        return explanation_view(self._parts, job)
