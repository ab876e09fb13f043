"""/learnings and /jobs/{id}/rating: what was learned from image jobs, and how good they were."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from corral.api import incoming
from corral.api.rest.answers import answer, body_of, errors, json
from corral.api.rest.jobs import Moment, moment
from corral.api.rest.parts import Parts, caller_of
from corral.api.views import rating_view
from corral.controller.learning import Chosen
from corral.sdk import views
from corral.sdk.views import read


class RatingBody(msgspec.Struct, forbid_unknown_fields=True):
    rating: int
    note: str = ""


STRUCTS: tuple[Any, ...] = (RatingBody, views.RatingView)
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
    router = parts.router("learning")

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
        found = parts.learnings.find(job, parts.queue.find)
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
        chosen = Chosen(moment("since", since), moment("until", until), batch, run)
        parts.streams.check()

        async def lines() -> AsyncIterator[bytes]:
            with parts.streams.one():
                async for chunk in parts.learnings.exported(chosen):
                    yield chunk

        return StreamingResponse(lines(), media_type="application/jsonl", headers=_STREAMED)

    return router
