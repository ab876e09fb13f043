"""/learnings, /learning-runs and /jobs/{id}/rating: what was learned from image jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from msgspec.structs import replace

from corral.api import incoming
from corral.api.parts import Parts
from corral.api.rest import routing
from corral.api.rest.answers import answer, body_of, errors, json
from corral.api.rest.jobs import Moment, moment
from corral.api.rest.routing import caller_of
from corral.api.views import rating_view
from corral.contract import views
from corral.contract.read_views import read
from corral.controller.images.learning import LearningFilters
from corral.controller.images.learning_runs import Run, StartedRun


class RatingBody(msgspec.Struct, forbid_unknown_fields=True):
    rating: int
    note: str = ""


STRUCTS: tuple[Any, ...] = (RatingBody, views.RatingView, views.LearningRunView)
_PLAN = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {"type": "object"},
            "example": {
                "name": "cfg-1",
                "variable": "txt2img.cfg_scale",
                "values": [5, 7.5, 10],
                "images": 4,
                "prompt": "a castle, rain",
                "base": {"txt2img": {"model": "sketch"}},
            },
        }
    },
}
_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {"$ref": "#/components/schemas/RatingBody"},
            "example": {"rating": 4, "note": "good light"},
        }
    },
}
_LINES = {"schema": {"type": "string"}}
_STREAMED = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


def routes(parts: Parts) -> APIRouter:
    router = routing.router(parts, "learning")
    _ratings(router, parts)
    _runs(router, parts)
    return router


def _ratings(router: APIRouter, parts: Parts) -> None:
    @router.post(
        "/jobs/{job}/rating",
        summary="Rate the images of a job, 1 to 5",
        responses={
            200: answer("RatingView", "It counts instead of those before."),
            **errors(404, 408, 409, 413, 507),
        },
        openapi_extra={"requestBody": _BODY},
    )
    async def rate(request: Request, job: str) -> Response:
        """Of an image job that succeeded. A rating stays after its job has left the history."""
        body = body_of(await incoming.whole(request, parts.limits), RatingBody)
        found = await parts.learnings.find(job, parts.queue.find)
        by = caller_of(request).name
        rating = await parts.learnings.rate(found, body.rating, body.note, by=by)
        return json(read(rating_view(rating)))

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

        return StreamingResponse(lines(), media_type="application/jsonl", headers=_STREAMED)


def _runs(router: APIRouter, parts: Parts) -> None:
    @router.post(
        "/learning-runs",
        status_code=202,
        summary="Try one setting at several values, as one batch",
        responses={
            200: answer("LearningRunView", "What a dry run would be."),
            202: answer("LearningRunView", "Submitted, or the run that this plan is already."),
            **errors(404, 408, 409, 413, 507),
        },
        openapi_extra={"requestBody": _PLAN},
    )
    async def start(
        request: Request,
        dry_run: Annotated[bool, Query(description="Say what it would be.")] = False,
    ) -> Response:
        data = await incoming.whole(request, parts.limits)
        started = await parts.learning_runs.start(data, caller_of(request), dry_run=dry_run)
        return json(_view(started), 200 if dry_run else 202)

    @router.get(
        "/learning-runs",
        summary="List learning runs, newest last",
        responses={200: answer("LearningRunView", "Without results.", many=True)},
    )
    async def listed() -> Response:
        return json([_summary(run) for run in parts.learning_runs.all()])

    @router.get(
        "/learning-runs/{name}",
        summary="One learning run and what came of it until now",
        responses={200: answer("LearningRunView", "Steps in their order."), **errors(404, 507)},
    )
    async def show(name: str) -> Response:
        return json(_view(await parts.learning_runs.show(name)))


def _summary(run: Run) -> views.LearningRunView:
    return views.LearningRunView(run.name, run.batch, run.jobs, run.started_at)


def _view(started: StartedRun) -> views.LearningRunView:
    result = msgspec.to_builtins(started.result)
    return replace(_summary(started.run), warnings=tuple(started.warnings), result=result)
