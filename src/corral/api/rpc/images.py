"""Image batches, their presets, and what is learned from them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from corral.api.rpc.guard import Calls, answers, streams
from corral.api.views import (
    batch_view,
    built_view,
    filled,
    preset_view,
    run_view,
    whole_batch_view,
)
from corral.contract import corral_pb2 as pb
from corral.controller.images.learning import LearningFilters
from corral.core.access import Caller

MOST_BATCHES = 1_000


class ImageCalls(Calls):
    @streams
    async def BuildBatch(
        self, request: pb.BuildBatchRequest, caller: Caller
    ) -> AsyncIterator[pb.BuildBatchReply]:
        plans = self._parts.plans
        built = await plans.build(request.plan, request.key, caller)
        yield built_view(built)
        if not request.dry_run:
            yield built_view(await plans.submit(built), submitted=True)
            return
        async for lines in plans.lines(built):
            yield pb.BuildBatchReply(records=lines)

    @answers
    async def GetBatch(self, request: pb.BatchRequest) -> pb.BatchView:
        return await whole_batch_view(self._parts, request.batch)

    @answers
    async def ListBatches(self, request: pb.ListBatchesRequest) -> pb.ListBatchesReply:
        most = min(request.limit or MOST_BATCHES, MOST_BATCHES)
        found = await self._parts.listing.batches(limit=most)
        return pb.ListBatchesReply(batches=[batch_view(*one) for one in found])

    @answers
    async def SavePreset(self, request: pb.SavePresetRequest) -> pb.PresetView:
        return preset_view(await self._parts.plans.presets.save(request.name, request.value))

    @answers
    async def ListPresets(self, request: pb.ListPresetsRequest) -> pb.ListPresetsReply:
        listed = self._parts.plans.presets.names()
        return pb.ListPresetsReply(
            presets=[pb.PresetView(name=name, saved_at=at) for name, at in listed]
        )

    @answers
    async def GetPreset(self, request: pb.PresetRequest) -> pb.PresetView:
        return preset_view(self._parts.plans.presets.get(request.name))

    @answers
    async def RemovePreset(self, request: pb.PresetRequest) -> pb.PresetView:
        return preset_view(await self._parts.plans.presets.remove(request.name))

    # --- learning ---

    @answers
    async def RateJob(self, request: pb.RateJobRequest, caller: Caller) -> pb.RatingView:
        job = await self._parts.learnings.find(request.job_id, self._parts.queue.find)
        rating = await self._parts.learnings.rate(job, request.rating, request.note, by=caller.name)
        return filled(pb.RatingView, rating)

    @streams
    async def ListLearnings(
        self, request: pb.ListLearningsRequest
    ) -> AsyncIterator[pb.LearningLines]:
        chosen = LearningFilters(request.since, request.until, request.batch, request.run)
        async for lines in self._parts.learnings.exported(chosen):
            yield pb.LearningLines(data=lines)

    @answers
    async def StartLearningRun(
        self, request: pb.LearningPlan, caller: Caller
    ) -> pb.LearningRunView:
        started = await self._parts.learning_runs.start(
            request.plan, caller, dry_run=request.dry_run
        )
        return run_view(started)

    @answers
    async def GetLearningRun(self, request: pb.LearningRunRequest) -> pb.LearningRunView:
        return run_view(await self._parts.learning_runs.show(request.name))

    @answers
    async def ListLearningRuns(
        self, request: pb.ListLearningRunsRequest
    ) -> pb.ListLearningRunsReply:
        return pb.ListLearningRunsReply(
            runs=[filled(pb.LearningRunView, run) for run in self._parts.learning_runs.all()]
        )
