"""HTTP: REST, the worker socket, `/health`, and the transfers of attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from fastapi import APIRouter, FastAPI, Request, WebSocket
from fastapi.responses import FileResponse, JSONResponse
from msgspec import Struct
from starlette.types import ASGIApp, Receive, Scope, Send

from corral.api import incoming, joining
from corral.api.auth import Hosts, bearer
from corral.api.correlation import Correlated
from corral.api.rest.answers import body_of, refusal
from corral.api.rest.mounting import mount
from corral.api.rest.parts import Parts
from corral.api.worker_socket import WorkerSocket
from corral.controller.blobs import Blobs
from corral.controller.queue import Queue
from corral.controller.store import Store
from corral.controller.tokens import AttemptTokens
from corral.core.errors import (
    ArtifactTooLarge,
    BlobNotFound,
    Conflict,
    Forbidden,
    InvalidJob,
    ResultTooLarge,
)
from corral.core.events import ArtifactStored, CheckpointStored
from corral.core.job import Blob, Head, JobId, decode_document
from corral.settings import LimitSettings as Limits

MAX_NAME = 512


class Enrolment(Struct, forbid_unknown_fields=True):
    name: str = ""


class OnlyOurHosts:
    """Refuses foreign Host and Origin headers before anything else looks at a request."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            found: dict[bytes, list[str]] = {b"host": [], b"origin": []}
            for name, value in scope["headers"]:
                if name in found:
                    found[name].append(value.decode("latin-1"))
            try:
                # Where one comes twice, each must be ours: nobody knows which one others read.
                for host in found[b"host"] or [""]:
                    self._hosts.check_host(host)
                for origin in found[b"origin"]:
                    self._hosts.check_origin(origin)
            except Forbidden as error:
                if scope["type"] == "websocket":
                    await send({"type": "websocket.close", "code": 1008, "reason": error.message})
                else:
                    await refusal(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class Transfers:
    """Bytes of one attempt, for whoever holds that attempt's token."""

    def __init__(
        self,
        store: Store,
        blobs: Blobs,
        tokens: AttemptTokens,
        *,
        limits: Limits,
        artifact_limit: int,
        early: Mapping[JobId, asyncio.Future[Any] | None],
    ) -> None:
        self._store, self._blobs, self._tokens = store, blobs, tokens
        self._limits, self._artifact_limit = limits, artifact_limit
        self._early = early
        """Jobs that were sent before they are on disk, and when they will be."""

    async def _head(self, request: Request, job: str, attempt: int) -> Head:
        self._tokens.check(bearer(request.headers.get("authorization")), job, attempt)
        if (written := self._early.get(job)) is not None:
            await asyncio.wait([written])  # it runs already, and is not known before that
        head = self._store.head(job)
        if head.attempt != attempt or not head.state.held:
            raise Conflict(f"Attempt {attempt} of job {job} is over.", job_id=job)
        return head

    async def package(self, request: Request, job: str, attempt: int, sha256: str) -> FileResponse:
        head = await self._head(request, job, attempt)
        document = decode_document(self._store.journal.document(head.submitted_seq))
        if sha256 not in {blob.sha256 for blob in document.blobs()}:
            raise Forbidden(f"Job {job} does not name the package {sha256[:64]}.", job_id=job)
        return FileResponse(self._blobs.open_path(sha256))

    async def result(self, request: Request, job: str, attempt: int) -> dict[str, object]:
        await self._head(request, job, attempt)
        blob = await self._blobs.put(
            incoming.pieces(request, self._limits),
            limit=self._limits.result_bytes,
            too_large=ResultTooLarge,
            setting="limits.result_bytes",
        )
        return {"sha256": blob.sha256, "size": blob.size}

    async def artifact(
        self, request: Request, job: str, attempt: int, name: str
    ) -> dict[str, object]:
        await self._head(request, job, attempt)
        path = PurePosixPath(name)
        odd = "\\" in name or not path.parts or not name.isprintable()
        if odd or path.is_absolute() or ".." in path.parts:
            raise InvalidJob(f"{name[:100]!r} is no name for an artifact.", job_id=job)
        if not 0 < len(name) <= MAX_NAME:
            raise InvalidJob(f"An artifact's name has 1 to {MAX_NAME} characters.", job_id=job)
        blob = await self._kept(request)
        await self._head(request, job, attempt)  # it may have ended while the bytes came
        fact = ArtifactStored(
            job=job,
            at=self._now(request),
            attempt=attempt,
            name=str(path),
            size=blob.size,
            file_sha256=blob.sha256,
        )
        await self._store.append([fact])
        return {"sha256": blob.sha256, "size": blob.size}

    async def put_checkpoint(self, request: Request, job: str, attempt: int) -> dict[str, object]:
        await self._head(request, job, attempt)
        blob = await self._kept(request)
        head = await self._head(request, job, attempt)  # it may have been lost while the bytes came
        fact = CheckpointStored(
            job=head.id, at=self._now(request), attempt=attempt, size=blob.size, sha256=blob.sha256
        )
        await self._store.append([fact])
        return {"sha256": blob.sha256, "size": blob.size}

    async def get_checkpoint(self, request: Request, job: str, attempt: int) -> FileResponse:
        head = await self._head(request, job, attempt)
        if not head.checkpoint:
            raise BlobNotFound(f"Job {job} has stored no checkpoint yet.", job_id=job)
        return FileResponse(self._blobs.open_path(head.checkpoint))

    async def _kept(self, request: Request) -> Blob:
        return await self._blobs.put(
            incoming.pieces(request, self._limits),
            limit=self._artifact_limit,
            too_large=ArtifactTooLarge,
            setting="artifact_limit",
        )

    def _now(self, request: Request) -> float:
        clock: Callable[[], float] = request.app.state.clock
        return clock()


def application(
    *,
    hosts: Hosts,
    transfers: Transfers,
    worker_socket: WorkerSocket,
    health: Callable[[], Awaitable[dict[str, object]]],
    queue: Queue,
    parts: Parts,
    metrics: APIRouter,
    clock: Callable[[], float],
) -> FastAPI:
    app = FastAPI(
        title="Corral", version=parts.version, docs_url=None, redoc_url=None, openapi_url=None
    )
    app.state.clock = clock
    app.add_middleware(OnlyOurHosts, hosts=hosts)
    app.add_middleware(Correlated)
    mount(app, parts)

    @app.get("/health", operation_id="health", summary="Whether the controller is well")
    async def get_health() -> JSONResponse:
        """Open to everybody: it says nothing about jobs but how many there are."""
        return JSONResponse(await health(), 503 if queue.stopping else 200)

    app.include_router(metrics)
    app.include_router(joining.routes(parts.herd))

    @app.post("/enrol", include_in_schema=False)
    async def enrol(request: Request) -> JSONResponse:
        """An invitation turns into a credential. The enrolment token opens nothing else."""
        token = bearer(request.headers.get("authorization"))
        address = request.client.host if request.client else ""
        await parts.herd.check_invited(token, address)
        wanted = body_of(await incoming.whole(request, parts.limits), Enrolment)
        enrolled, credential = await parts.herd.enrol(token, address, wanted.name)
        found = {"worker_id": enrolled.id, "name": enrolled.name, "credential": credential}
        return JSONResponse(found, 201)

    @app.websocket("/worker")
    async def worker(websocket: WebSocket) -> None:
        await worker_socket.serve(websocket)

    attempt = "/attempts/{job}/{attempt}"
    app.get(f"{attempt}/packages/{{sha256}}", include_in_schema=False)(transfers.package)
    app.put(f"{attempt}/result", include_in_schema=False)(transfers.result)
    app.put(f"{attempt}/artifacts/{{name:path}}", include_in_schema=False)(transfers.artifact)
    app.put(f"{attempt}/checkpoint", include_in_schema=False)(transfers.put_checkpoint)
    app.get(f"{attempt}/checkpoint", include_in_schema=False)(transfers.get_checkpoint)
    return app
