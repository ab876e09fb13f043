"""/batches: jobs that were submitted together, counted."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Response

from corral.api.rest.answers import answer, errors, json
from corral.api.rest.parts import Parts
from corral.controller.listing import Counted


class BatchView(msgspec.Struct):
    """`done` is the share of its jobs that have ended, 0 to 1."""

    batch: str
    jobs: int
    states: dict[str, int]
    done: float
    submitted_at: float
    ended_at: float
    seconds: float


class BatchPage(msgspec.Struct):
    """The one with the newest job first. `next` is the cursor of the page behind this one."""

    batches: list[BatchView]
    next: str | None


class BatchCancelled(msgspec.Struct):
    batch: str
    cancelled: int


STRUCTS: tuple[Any, ...] = (BatchPage, BatchView, BatchCancelled)


def routes(parts: Parts) -> APIRouter:
    router = parts.router("batches")

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
        found = [
            (name, counted)
            for name, counted in (await parts.listing.batches()).items()
            if not cursor or counted.newest < cursor
        ]
        page = found[:limit]
        behind = page[-1][1].newest if len(found) > limit else None
        return json(BatchPage([_view(*one) for one in page], behind))

    @router.get(
        "/batches/{batch:path}",
        summary="One batch",
        responses={200: answer("BatchView", "Its jobs by state."), **errors(404)},
    )
    async def show(batch: str) -> Response:
        return json(_view(batch, await parts.listing.batch(batch)))

    @router.post(
        "/batches/{batch:path}/cancel",
        summary="Cancel everything of a batch that lives",
        responses={200: answer("BatchCancelled", "How many."), **errors(404, 507)},
    )
    async def cancel(batch: str) -> Response:
        await parts.listing.batch(batch)  # one that never was is told so
        return json(BatchCancelled(batch, await parts.queue.cancel_batch(batch)))

    return router


def _view(batch: str, counted: Counted) -> BatchView:
    over = counted.done == counted.total
    return BatchView(
        batch=batch,
        jobs=counted.total,
        states=counted.states,
        done=counted.done / counted.total,
        submitted_at=counted.submitted_at,
        ended_at=counted.ended_at if over else 0.0,
        seconds=counted.seconds,
    )
