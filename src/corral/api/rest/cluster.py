"""/cluster/status, /workers, /queue, /tokens: the whole, and who may steer it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from msgspec import Meta

from corral.api import incoming
from corral.api.parts import Parts
from corral.api.rest import routing
from corral.api.rest.answers import answer, body, body_of, encoded, errors, json
from corral.api.rest.routing import caller_of
from corral.api.views import filled, invitation_view, queue_view, worker_pages, worker_view
from corral.contract import corral_pb2 as pb
from corral.contract import views
from corral.contract.read_views import read, read_as
from corral.core.errors import WorkerNotFound
from corral.core.job import State

LATELY_S = 24 * 3600.0


class Lately(msgspec.Struct):
    """What ended within the last 24 hours; null where nothing did."""

    states: dict[str, int]
    success_rate: float | None
    average_duration_s: float | None


class ClusterStatus(msgspec.Struct):
    status: str
    """`ok`, `full` (no new work: `reason` says why) or `stopping`."""
    reason: str
    version: str
    started_at: float
    workers: int
    workers_connected: int
    gpus: int
    queue: views.QueueView
    active_jobs: int
    last_24h: Lately


class TokenBody(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    role: Literal["read", "submit", "admin"]
    expires_in: Annotated[float, Meta(ge=0)] = 0.0


class NewToken(msgspec.Struct):
    """The token is shown this once; the controller keeps only its digest."""

    token: str
    view: views.TokenView


class WorkerChange(msgspec.Struct, forbid_unknown_fields=True):
    """What the operator wishes of a worker; what is left out stays."""

    name: str | None = None
    draining: bool | None = None
    labels: list[str] | None = None
    """All that the operator adds, instead of those before."""


class InvitationBody(msgspec.Struct, forbid_unknown_fields=True):
    client: str = ""
    """The name of a client's new token; without one a worker is invited."""
    role: Literal["read", "submit", "admin"] = "submit"
    expires_in: Annotated[float, Meta(ge=0)] = 0.0
    """Seconds; without it a worker's invitation ends after a day, a client's token never."""
    uses: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """How many machines may join with it; 0 for any number."""
    renew: bool = False
    """Void what was given out to workers before."""


class NewInvitation(views.InvitationView, frozen=True):
    """For `corral worker join` or `corral login`."""


def routes(parts: Parts) -> list[APIRouter]:
    router = routing.router(parts, "cluster")
    _cluster(router, parts)
    _looking_at_workers(router, parts)
    _changing_workers(router, parts)
    _queue(router, parts)
    _tokens(router, parts)
    return [router]


def _cluster(router: APIRouter, parts: Parts) -> None:
    @router.get(
        "/cluster/status",
        summary="Workers, queue, active jobs, success rate and average duration",
        responses={200: answer(ClusterStatus, "Now, and the last 24 hours.")},
    )
    async def status() -> Response:
        workers = parts.loop.workers()
        counted = await parts.listing.since(time.time() - LATELY_S)
        succeeded, failed = (counted.states.get(s, 0) for s in (State.SUCCEEDED, State.FAILED))
        ran = succeeded + failed
        queue = read(queue_view(parts))
        word, reason = parts.queue.condition()
        return json(
            ClusterStatus(
                status=word,
                reason=reason,
                version=parts.version,
                started_at=parts.started_at,
                workers=len(workers),
                workers_connected=sum(worker.connected for worker in workers),
                gpus=sum(len(worker.capabilities.gpus) for worker in workers if worker.connected),
                queue=queue,
                active_jobs=queue.active,
                last_24h=Lately(
                    states=counted.states,
                    success_rate=succeeded / ran if ran else None,
                    average_duration_s=counted.seconds / ran if ran else None,
                ),
            )
        )


def _looking_at_workers(router: APIRouter, parts: Parts) -> None:
    @router.get(
        "/workers",
        summary="Every worker: what it has and what runs there",
        responses={200: answer(list[views.WorkerView], "All of them."), **errors(429)},
    )
    async def workers() -> Response:
        parts.streams.check()

        async def listed() -> AsyncIterator[bytes]:
            with parts.streams.one():
                before = b"["
                async for page in worker_pages(parts):
                    if page.workers:
                        yield before + encoded([read(one) for one in page.workers])[1:-1]
                        before = b","
                yield b"]" if before == b"," else b"[]"

        return StreamingResponse(listed(), media_type="application/json")

    @router.get(
        "/workers/{name}",
        summary="One worker, by its name or id",
        responses={200: answer(views.WorkerView, "This one."), **errors(404)},
    )
    async def worker(name: str) -> Response:
        for worker in parts.loop.workers():
            if name in (worker.name, worker.id):
                return json(read(worker_view(parts, worker)))
        raise WorkerNotFound(f"No worker is called {name[:100]!r}. GET /workers lists them.")


def _changing_workers(router: APIRouter, parts: Parts) -> None:
    @router.patch(
        "/workers/{name}",
        summary="Drain or resume a worker, give it another name or other labels",
        responses={
            200: answer(views.WorkerView, "As it is now."),
            **errors(404, 408, 409, 413, 507),
        },
        openapi_extra=body(WorkerChange),
    )
    async def change_worker(name: str, request: Request) -> Response:
        wanted = body_of(await incoming.whole(request, parts.limits), WorkerChange)
        changed = await parts.herd.change(
            name, new_name=wanted.name, draining=wanted.draining, labels=wanted.labels
        )
        return json(read(worker_view(parts, changed)))

    @router.delete(
        "/workers/{name}",
        summary="Revoke a worker: it is cut off at once",
        responses={200: answer(views.WorkerView, "As it was."), **errors(404, 409, 507)},
    )
    async def revoke_worker(name: str) -> Response:
        return json(read(worker_view(parts, await parts.herd.revoke(name))))

    @router.post(
        "/invitations",
        status_code=201,
        summary="A string with which a worker joins or a client logs in",
        responses={201: answer(NewInvitation, "A secret."), **errors(408, 409, 413, 507)},
        openapi_extra=body(InvitationBody),
    )
    async def invite(request: Request) -> Response:
        wanted = body_of(await incoming.whole(request, parts.limits), InvitationBody)
        asked = pb.InviteRequest(**msgspec.structs.asdict(wanted))
        told = await invitation_view(parts.herd, asked)
        return json(read_as(NewInvitation, told), 201)


def _queue(router: APIRouter, parts: Parts) -> None:
    @router.get(
        "/queue",
        summary="How many jobs wait by class, and whether the queue is paused",
        responses={200: answer(views.QueueView, "The queue.")},
    )
    async def queue() -> Response:
        return json(read(queue_view(parts)))

    @router.post(
        "/queue/pause",
        summary="Start nothing new, also after a restart",
        responses={200: answer(views.QueueView, "What workers hold goes on."), **errors(507)},
    )
    async def pause(request: Request) -> Response:
        await parts.loop.hold(True, by=caller_of(request).name)
        return json(read(queue_view(parts)))

    @router.post(
        "/queue/resume",
        summary="Go on",
        responses={200: answer(views.QueueView, "The queue."), **errors(507)},
    )
    async def resume(request: Request) -> Response:
        await parts.loop.hold(False, by=caller_of(request).name)
        return json(read(queue_view(parts)))


def _tokens(router: APIRouter, parts: Parts) -> None:
    @router.get(
        "/tokens",
        summary="Tokens of clients, without the tokens themselves",
        responses={200: answer(list[views.TokenView], "All of them.")},
    )
    async def tokens() -> Response:
        return json([read(filled(pb.TokenView, one)) for one in parts.access.tokens()])

    @router.post(
        "/tokens",
        status_code=201,
        summary="Make a token with a role",
        responses={201: answer(NewToken, "Shown this once."), **errors(408, 409, 413, 507)},
        openapi_extra=body(TokenBody),
    )
    async def create_token(request: Request) -> Response:
        wanted = body_of(await incoming.whole(request, parts.limits), TokenBody)
        token, kept = await parts.access.create(wanted.name, wanted.role, wanted.expires_in)
        return json(NewToken(token, read(filled(pb.TokenView, kept))), 201)

    @router.delete(
        "/tokens/{name}",
        summary="Revoke a token",
        responses={200: answer(views.TokenView, "Good for nothing now."), **errors(404, 507)},
    )
    async def revoke_token(name: str) -> Response:
        return json(read(filled(pb.TokenView, await parts.access.revoke(name))))
