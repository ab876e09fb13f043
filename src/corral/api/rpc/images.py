"""Image batches, their presets, and what is learned from them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from corral.api.rpc.guard import Calls, Context, answers, streams
from corral.api.views import (
    batch_view,
    built_view,
    preset_view,
    rating_view,
    run_view,
    whole_batch_view,
)
from corral.contract import corral_pb2 as pb
from corral.controller.images.learning import LearningFilters
from corral.controller.jobs.batches import look

MOST_BATCHES = 1_000


class ImageCalls(Calls):
    @streams
    async def BuildBatch(  # noqa: N802
        self, request: pb.BuildBatchRequest, context: Context
    ) -> AsyncIterator[pb.BuildBatchReply]:
        plans = self._parts.plans
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
        found = await look(
            request.batch, self._parts.listing, self._parts.store.world, self._parts.loop
        )
        return whole_batch_view(found)

    @answers
    async def ListBatches(  # noqa: N802
        self, request: pb.ListBatchesRequest, context: Context
    ) -> pb.ListBatchesReply:
        most = min(request.limit or MOST_BATCHES, MOST_BATCHES)
        found = await self._parts.listing.batches(limit=most)
        return pb.ListBatchesReply(batches=[batch_view(*one) for one in found])

    @answers
    async def SavePreset(  # noqa: N802
        self, request: pb.SavePresetRequest, context: Context
    ) -> pb.PresetView:
        saved = await self._parts.plans.presets.save(request.name, request.value)
        return preset_view(saved.name, saved.saved_at, saved.value)

    @answers
    async def ListPresets(  # noqa: N802
        self, request: pb.ListPresetsRequest, context: Context
    ) -> pb.ListPresetsReply:
        listed = [preset_view(*one) for one in self._parts.plans.presets.names()]
        return pb.ListPresetsReply(presets=listed)

    @answers
    async def GetPreset(  # noqa: N802
        self, request: pb.PresetRequest, context: Context
    ) -> pb.PresetView:
        found = self._parts.plans.presets.get(request.name)
        return preset_view(found.name, found.saved_at, found.value)

    @answers
    async def RemovePreset(  # noqa: N802
        self, request: pb.PresetRequest, context: Context
    ) -> pb.PresetView:
        found = await self._parts.plans.presets.remove(request.name)
        return preset_view(found.name, found.saved_at, found.value)

    # --- learning ---

    @answers
    async def RateJob(  # noqa: N802
        self, request: pb.RateJobRequest, context: Context
    ) -> pb.RatingView:
        job = await self._parts.learnings.find(request.job_id, self._parts.queue.find)
        by = self.caller(context).name
        return rating_view(
            await self._parts.learnings.rate(job, request.rating, request.note, by=by)
        )

    @streams
    async def ListLearnings(  # noqa: N802
        self, request: pb.ListLearningsRequest, context: Context
    ) -> AsyncIterator[pb.LearningLines]:
        chosen = LearningFilters(request.since, request.until, request.batch, request.run)
        async for lines in self._parts.learnings.exported(chosen):
            yield pb.LearningLines(data=lines)

    @answers
    async def StartLearningRun(  # noqa: N802
        self, request: pb.LearningPlan, context: Context
    ) -> pb.LearningRunView:
        caller = self.caller(context)
        started = await self._parts.learning_runs.start(
            request.plan, caller, dry_run=request.dry_run
        )
        return run_view(started.run, started)

    @answers
    async def GetLearningRun(  # noqa: N802
        self, request: pb.LearningRunRequest, context: Context
    ) -> pb.LearningRunView:
        shown = await self._parts.learning_runs.show(request.name)
        return run_view(shown.run, shown)

    @answers
    async def ListLearningRuns(  # noqa: N802
        self, request: pb.ListLearningRunsRequest, context: Context
    ) -> pb.ListLearningRunsReply:
        return pb.ListLearningRunsReply(
            runs=[run_view(run) for run in self._parts.learning_runs.all()]
        )
