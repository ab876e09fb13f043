"""/batches: image jobs from a plan, and jobs that were submitted together, counted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Query, Request, Response

from corral.api import incoming
from corral.api.parts import Parts
from corral.api.rest import routing
from corral.api.rest.answers import answer, errors, json
from corral.api.rest.routing import caller_of
from corral.api.views import batch_view, whole_batch_view
from corral.contract import views
from corral.contract.read_views import read
from corral.controller.images.plans import BuiltBatch
from corral.controller.jobs.batches import look


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


STRUCTS: tuple[Any, ...] = (BatchPage, views.BatchView, BatchCancelled, BatchBuilt)
_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {"type": "object"},
            "example": {
                "name": "castles",
                "seed": 42,
                "base": {"txt2img": {"model": "sketch", "width": 64, "height": 64}},
                "prompts": [{"positive": "a castle, [[weather]]"}],
                "matrix": {"mode": "fanout", "slots": {"weather": ["rain", "snow"]}},
            },
        }
    },
}


def routes(parts: Parts) -> APIRouter:
    router = routing.router(parts, "batches")
    _building(router, parts)
    _batches(router, parts)
    return router


def _building(router: APIRouter, parts: Parts) -> None:
    previewing = asyncio.Semaphore(1)

    @router.post(
        "/batches",
        status_code=202,
        summary="Build image jobs from a plan and submit them as one batch",
        responses={
            202: answer("BatchBuilt", "Accepted, durably."),
            200: answer("BatchBuilt", "What a dry run built."),
            **errors(404, 408, 409, 413, 507),
        },
        openapi_extra={"requestBody": _BODY},
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
        async with previewing:  # each may hold hundreds of megabytes until it is written down
            shown = await parts.plans.build(*asked)
            # Thousands of records are not written down while others wait.
            return await asyncio.to_thread(lambda: json(_told(shown, "", list(shown.records))))


def _batches(router: APIRouter, parts: Parts) -> None:
    @router.get(
        "/batches",
        summary="List batches, newest first",
        responses={200: answer("BatchPage", "One page.")},
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
        responses={200: answer("BatchView", "Its jobs by state and by worker."), **errors(404)},
    )
    async def show(batch: str) -> Response:
        found = await look(batch, parts.listing, parts.store.world, parts.loop)
        return json(read(whole_batch_view(found)))

    @router.post(
        "/batches/{batch:path}/cancel",
        summary="Cancel everything of a batch that lives",
        responses={200: answer("BatchCancelled", "How many."), **errors(404, 507)},
    )
    async def cancel(batch: str) -> Response:
        await parts.listing.batch(batch)  # one that never was is told so
        return json(BatchCancelled(batch, await parts.queue.cancel_batch(batch)))


def _told(built: BuiltBatch, batch: str, records: Sequence[dict[str, Any]] = ()) -> BatchBuilt:
    return BatchBuilt(
        batch=batch,
        jobs=len(built.jobs),
        estimate_s=built.estimate_s,
        warnings=built.warnings,
        records=list(records),
    )
