"""The list of workers, a page at a time: there may be many, and each may say much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from heapq import nsmallest

from corral.api.parts import Parts
from corral.api.views import worker_views
from corral.contract import corral_pb2 as pb

PAGE_WORKERS, PAGE_BYTES = 50, 1 << 20
"""A page ends with the worker that fills it. One alone says less than a message holds: all that is
kept of it came in frames (`limits.frame_bytes`)."""


def page(parts: Parts, after: str = "") -> pb.ListWorkersReply:
    """The next workers, by their ids, behind the one with the id `after`."""
    behind = (worker for worker in parts.loop.workers() if worker.id > after)
    found = nsmallest(PAGE_WORKERS + 1, behind, key=lambda worker: worker.id)
    reply, size = pb.ListWorkersReply(), 0
    for worker in found[:PAGE_WORKERS]:
        (view,) = worker_views(parts.store.world.seats([worker]))
        reply.workers.append(view)
        size += view.ByteSize()
        if size >= PAGE_BYTES:
            break
    reply.more = len(reply.workers) < len(found)
    return reply


async def pages(parts: Parts) -> AsyncIterator[pb.ListWorkersReply]:
    """All of them, each page as it is when it is asked for."""
    reply = page(parts)
    yield reply
    while reply.more:
        await asyncio.sleep(0)
        reply = page(parts, reply.workers[-1].id)
        yield reply
