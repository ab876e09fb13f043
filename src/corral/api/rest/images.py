"""/batches (of plans, or of jobs submitted together), /presets (bases of plans by name), and what
was learned from image jobs: /learnings, /learning-runs, /jobs/{id}/rating."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from corral.api import incoming
from corral.api.parts import Parts
from corral.api.rest import routing
from corral.api.rest.answers import STREAMED, answer, body, body_of, errors, json
from corral.api.rest.jobs import Moment, moment
from corral.api.rest.routing import caller_of
from corral.api.views import batch_view, filled, run_view, whole_batch_view
from corral.contract import corral_pb2 as pb
from corral.contract import views
from corral.contract.read_views import read
from corral.controller.images.learning import LearningFilters
from corral.controller.images.plans import BuiltBatch
from corral.controller.images.presets import Preset


class BatchPage(msgspec.Struct):
    """The one with the newest job first. `next` is the cursor of the page behind this one."""

    batches: list[views.BatchView]
    next: str | None


class BatchCancelled(msgspec.Struct):
    batch: str
    cancelled: int


class BatchBuilt(msgspec.Struct):
    """Durable from now on; of a dry run `batch` is empty, and `records` has what would be."""

    batch: str
    jobs: int
    estimate_s: float | None
    """About how long it takes, if nothing else ran; null where nobody knows."""
    warnings: list[str]
    records: list[dict[str, Any]]


class PresetList(msgspec.Struct):
    """By name."""

    presets: list[views.PresetView]


class RatingBody(msgspec.Struct, forbid_unknown_fields=True):
    rating: int
    note: str = ""


_PLAN = body(
    example={
        "name": "castles",
        "seed": 42,
        "base": {"txt2img": {"model": "sketch", "width": 64, "height": 64}},
        "prompts": [{"positive": "a castle, [[weather]]"}],
        "matrix": {"mode": "fanout", "slots": {"weather": ["rain", "snow"]}},
    }
)
_PRESET = body(example={"txt2img": {"model": "sketch", "steps": 20}})
_LEARNING_PLAN = body(
    example={
        "name": "cfg-1",
        "variable": "txt2img.cfg_scale",
        "values": [5, 7.5, 10],
        "images": 4,
        "prompt": "a castle, rain",
        "base": {"txt2img": {"model": "sketch"}},
    }
)
_RATING = body(RatingBody, example={"rating": 4, "note": "good light"})
_LINES = {"schema": {"type": "string"}}


def routes(parts: Parts) -> list[APIRouter]:
    found = [routing.router(parts, tag) for tag in ("batches", "presets", "learning")]
    batches, presets, learning = found
    _building(batches, parts)
    _batches(batches, parts)
    _presets(presets, parts)
    _ratings(learning, parts)
    _runs(learning, parts)
    return found


def _building(router: APIRouter, parts: Parts) -> None:
    previewing = asyncio.Semaphore(1)

    @router.post(
        "/batches",
        status_code=202,
        summary="Build image jobs from a plan and submit them as one batch",
        responses={
            202: answer(BatchBuilt, "Accepted, durably."),
            200: answer(BatchBuilt, "What a dry run built."),
            **errors(404, 408, 409, 413, 507),
        },
        openapi_extra=_PLAN,
    )
    async def build(
        request: Request,
        dry_run: Annotated[bool, Query(description="Only show the records.")] = False,
        idempotency_key: Annotated[
            str, Header(description="The same key again is the same batch.", max_length=400)
        ] = "",
    ) -> Response:
        """The body is the plan, as JSON; docs/pipelines.md describes it."""
        plan = await incoming.whole(request, parts.limits)
        asked = (plan, idempotency_key, caller_of(request))
        if not dry_run:
            built = await parts.plans.submit(await parts.plans.build(*asked))
            return json(_told(built, built.batch), 202)
        async with previewing:  # each may hold hundreds of megabytes until it is encoded
            shown = await parts.plans.build(*asked)
            # To encode thousands of records here would hold up everybody else.
            return await asyncio.to_thread(lambda: json(_told(shown, "", list(shown.records))))


def _batches(router: APIRouter, parts: Parts) -> None:
    @router.get(
        "/batches",
        summary="List batches, newest first",
        responses={200: answer(BatchPage, "One page.")},
    )
    async def listed(
        limit: Annotated[int, Query(ge=1)] = 100,
        cursor: Annotated[str, Query(description="`next` of the page before.")] = "",
    ) -> Response:
        limit = min(limit, parts.limits.page)
        found = await parts.listing.batches(before=cursor, limit=limit + 1)
        page = found[:limit]
        behind = page[-1][1].newest if len(found) > limit else None
        return json(BatchPage([read(batch_view(*one)) for one in page], behind))

    @router.get(
        "/batches/{batch:path}",
        summary="One batch",
        responses={200: answer(views.BatchView, "Its jobs by state and by worker."), **errors(404)},
    )
    async def show(batch: str) -> Response:
        return json(read(await whole_batch_view(parts, batch)))

    @router.post(
        "/batches/{batch:path}/cancel",
        summary="Cancel everything of a batch that lives",
        responses={200: answer(BatchCancelled, "How many."), **errors(404, 507)},
    )
    async def cancel(batch: str) -> Response:
        await parts.listing.batch(batch)  # one that never was is told so
        return json(BatchCancelled(batch, await parts.queue.cancel_batch(batch)))


def _presets(router: APIRouter, parts: Parts) -> None:
    @router.get(
        "/presets",
        summary="List presets",
        responses={200: answer(PresetList, "All of them.")},
    )
    async def listed() -> Response:
        return json(PresetList([views.PresetView(*one) for one in parts.plans.presets.names()]))

    @router.get(
        "/presets/{name}",
        summary="One preset",
        responses={200: answer(Preset, "With its settings by stage."), **errors(404, 507)},
    )
    async def show(name: str) -> Response:
        return json(parts.plans.presets.get(name))

    @router.put(
        "/presets/{name}",
        summary="Save a preset, in the place of an older one",
        responses={200: answer(Preset, "Saved."), **errors(404, 408, 409, 413, 507)},
        openapi_extra=_PRESET,
    )
    async def save(request: Request, name: str) -> Response:
        value = await incoming.whole(request, parts.limits)
        return json(await parts.plans.presets.save(name, value))

    @router.delete(
        "/presets/{name}",
        summary="Remove a preset",
        responses={200: answer(Preset, "As it was."), **errors(404, 507)},
    )
    async def remove(name: str) -> Response:
        return json(await parts.plans.presets.remove(name))


def _ratings(router: APIRouter, parts: Parts) -> None:
    @router.post(
        "/jobs/{job}/rating",
        summary="Rate the images of a job, 1 to 5",
        responses={
            200: answer(views.RatingView, "It counts instead of those before."),
            **errors(404, 408, 409, 413, 507),
        },
        openapi_extra=_RATING,
    )
    async def rate(request: Request, job: str) -> Response:
        """Of an image job that succeeded. A rating stays after its job has left the history."""
        told = body_of(await incoming.whole(request, parts.limits), RatingBody)
        found = await parts.learnings.find(job, parts.queue.find)
        by = caller_of(request).name
        rating = await parts.learnings.rate(found, told.rating, told.note, by=by)
        return json(read(filled(pb.RatingView, rating)))

    @router.get(
        "/learnings",
        summary="What was learned from image jobs",
        responses={
            200: {
                "description": "One JSON object a line, in the order of completion.",
                "content": {"application/jsonl": _LINES},
            },
            **errors(429),
        },
    )
    async def learnings(
        since: Moment = "",
        until: Moment = "",
        batch: Annotated[str, Query(description="Only of this batch.")] = "",
        run: Annotated[str, Query(description="Only of this learning run.")] = "",
    ) -> Response:
        """Each line has its rating, or null. `since` and `until` are about when jobs ended."""
        chosen = LearningFilters(moment("since", since), moment("until", until), batch, run)
        parts.streams.check()

        async def lines() -> AsyncIterator[bytes]:
            with parts.streams.one():
                async for chunk in parts.learnings.exported(chosen):
                    yield chunk

        return StreamingResponse(lines(), media_type="application/jsonl", headers=STREAMED)


def _runs(router: APIRouter, parts: Parts) -> None:
    @router.post(
        "/learning-runs",
        status_code=202,
        summary="Try one setting at several values, as one batch",
        responses={
            200: answer(views.LearningRunView, "What a dry run would be."),
            202: answer(views.LearningRunView, "Submitted, or the run that this plan is already."),
            **errors(404, 408, 409, 413, 507),
        },
        openapi_extra=_LEARNING_PLAN,
    )
    async def start(
        request: Request,
        dry_run: Annotated[bool, Query(description="Say what it would be.")] = False,
    ) -> Response:
        data = await incoming.whole(request, parts.limits)
        started = await parts.learning_runs.start(data, caller_of(request), dry_run=dry_run)
        return json(read(run_view(started)), 200 if dry_run else 202)

    @router.get(
        "/learning-runs",
        summary="List learning runs, newest last",
        responses={200: answer(list[views.LearningRunView], "Without results.")},
    )
    async def listed() -> Response:
        return json([read(filled(pb.LearningRunView, run)) for run in parts.learning_runs.all()])

    @router.get(
        "/learning-runs/{name}",
        summary="One learning run and what came of it until now",
        responses={200: answer(views.LearningRunView, "Steps in their order."), **errors(404, 507)},
    )
    async def show(name: str) -> Response:
        return json(read(run_view(await parts.learning_runs.show(name))))


def _told(built: BuiltBatch, batch: str, records: Sequence[dict[str, Any]] = ()) -> BatchBuilt:
    return BatchBuilt(
        batch=batch,
        jobs=len(built.jobs),
        estimate_s=built.estimate_s,
        warnings=built.warnings,
        records=list(records),
    )
