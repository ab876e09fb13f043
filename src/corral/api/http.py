"""HTTP: REST, `/health`, and the transfers of attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Annotated

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse, Response
from msgspec import Meta, Struct
from starlette.background import BackgroundTask

from corral.api import incoming
from corral.api.attempt_door import AttemptDoor
from corral.api.auth import bearer
from corral.api.first_answers import Health
from corral.api.parts import Parts
from corral.api.rest.answers import body_of
from corral.api.rest.mounting import mount
from corral.api.workers import joining
from corral.controller.auth.tokens import AttemptTokens
from corral.controller.early_starts import Early
from corral.controller.files.artifacts import Artifacts
from corral.controller.files.assets import Assets
from corral.controller.files.blobs import Blobs
from corral.controller.store import Store
from corral.core.assets import is_digest
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
from corral.core.limits import InputLimits as Limits

MAX_NAME = 512


class Enrolment(Struct, forbid_unknown_fields=True):
    name: str = ""


class Placed(Struct, forbid_unknown_fields=True):
    """An artifact that goes to the shared root or to the bucket."""

    size: Annotated[int, Meta(ge=0, le=2**53)]
    sha256: str = ""


MOST_BUNDLED = 1_000
"""Artifacts that come together: each takes a file of the blobs and a record of the journal."""


class Bundled(Struct, forbid_unknown_fields=True):
    """One of several artifacts that come together."""

    name: str
    size: Annotated[int, Meta(ge=0, le=2**53)]


class Transfers:
    """Bytes of one attempt, for whoever holds that attempt's token."""

    def __init__(
        self,
        store: Store,
        blobs: Blobs,
        tokens: AttemptTokens,
        *,
        assets: Assets,
        artifacts: Artifacts,
        limits: Limits,
        artifact_limit: int,
        early: Mapping[JobId, Early],
    ) -> None:
        self._store, self._blobs, self._tokens = store, blobs, tokens
        self._assets, self._artifacts = assets, artifacts
        self._limits, self._artifact_limit = limits, artifact_limit
        self._early = early

    async def _head(self, request: Request, job: str, attempt: int) -> Head:
        self._tokens.check(bearer(request.headers.get("authorization")), job, attempt)
        return await self.current(job, attempt)

    async def current(self, job: str, attempt: int) -> Head:
        """The job, where this attempt is the one that a worker has now."""
        early = self._early.get(job)
        if early is not None and early.written is not None:
            self._store.hurry()
            await asyncio.wait([early.written])  # it runs already, and is not known before that
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

    async def asset(self, request: Request, job: str, attempt: int, sha256: str) -> Response:
        """The bytes of one input, or the way to them where a bucket has them."""
        head = await self._head(request, job, attempt)
        document = decode_document(self._store.journal.document(head.submitted_seq))
        named = next((one for one in document.inputs if one.sha256 == sha256), None)
        if named is None:
            raise Forbidden(f"Job {job} does not name the asset {sha256[:64]}.", job_id=job)
        found = await self._assets.source(named)
        if isinstance(found, str):
            return RedirectResponse(found)
        if isinstance(found, Path):
            return FileResponse(found)
        # By its descriptor: under its path there may be another one by now.
        same = f"/proc/self/fd/{found.fileno()}"
        return FileResponse(same, background=BackgroundTask(found.close))

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
        name = _artifact_name(name, job)
        blob = await self._kept(request)
        await self._head(request, job, attempt)  # it may have ended while the bytes came
        await self._note(request, job, attempt, name, blob)
        return {"sha256": blob.sha256, "size": blob.size}

    async def bundle(self, request: Request, job: str, attempt: int) -> list[dict[str, object]]:
        """Several small artifacts at once: a line that names them, then their bytes in a row."""
        await self._head(request, job, attempt)
        line, _, data = (await incoming.whole(request, self._limits)).partition(b"\n")
        listed = body_of(line, Annotated[list[Bundled], Meta(max_length=MOST_BUNDLED)])
        if sum(one.size for one in listed) != len(data):
            raise InvalidJob("The bytes are not as many as the line before them says.", job_id=job)
        names = [_artifact_name(one.name, job) for one in listed]
        ends = list(accumulate(one.size for one in listed))
        parts = [data[end - one.size : end] for one, end in zip(listed, ends, strict=True)]
        if any(len(part) > self._artifact_limit for part in parts):
            raise ArtifactTooLarge(f"More than artifact_limit = {self._artifact_limit:,} bytes.")
        blobs = await self._blobs.put_all(parts)
        await self._head(request, job, attempt)  # it may have ended while the bytes came
        await self._store.append(
            [
                ArtifactStored(
                    job=job,
                    at=self._now(request),
                    attempt=attempt,
                    name=name,
                    size=blob.size,
                    file_sha256=blob.sha256,
                )
                for name, blob in zip(names, blobs, strict=True)
            ]
        )
        return [{"sha256": blob.sha256, "size": blob.size} for blob in blobs]

    async def placed_artifact(
        self, request: Request, job: str, attempt: int, name: str
    ) -> dict[str, object]:
        """An artifact that goes elsewhere: without its digest, the URL to send it to; with it, the
        word that it is there."""
        await self._head(request, job, attempt)
        name = _artifact_name(name, job)
        told = body_of(await incoming.whole(request, self._limits), Placed)
        if not told.sha256:
            return {"put_url": await self._artifacts.place(job, attempt, name, told.size)}
        if not is_digest(told.sha256):
            raise InvalidJob(f"{told.sha256[:80]!r} is no sha256.", job_id=job)
        uri = await self._artifacts.stored(job, attempt, name, told.size)
        await self._head(request, job, attempt)
        await self._note(request, job, attempt, name, Blob(told.sha256, told.size), uri)
        return {"sha256": told.sha256, "size": told.size}

    async def _note(
        self, request: Request, job: str, attempt: int, name: str, blob: Blob, uri: str = ""
    ) -> None:
        fact = ArtifactStored(
            job=job,
            at=self._now(request),
            attempt=attempt,
            name=name,
            size=blob.size,
            file_sha256=blob.sha256,
            uri=uri,
        )
        await self._store.append([fact])

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


def _artifact_name(name: str, job: JobId) -> str:
    path = PurePosixPath(name)
    odd = "\\" in name or not path.parts or not name.isprintable()
    if odd or path.is_absolute() or ".." in path.parts:
        raise InvalidJob(f"{name[:100]!r} is no name for an artifact.", job_id=job)
    if not 0 < len(name) <= MAX_NAME:
        raise InvalidJob(f"An artifact's name has 1 to {MAX_NAME} characters.", job_id=job)
    return str(path)


def application(
    *,
    transfers: Transfers,
    attempt_door: AttemptDoor,
    health: Health,
    parts: Parts,
    metrics: APIRouter,
    clock: Callable[[], float],
) -> FastAPI:
    app = FastAPI(
        title="Corral", version=parts.version, docs_url=None, redoc_url=None, openapi_url=None
    )
    app.state.clock = clock
    # Before all others, which are gone through for each request: attempts ask most.
    attempt = "/attempts/{job}/{attempt}"
    app.get(f"{attempt}/packages/{{sha256}}", include_in_schema=False)(transfers.package)
    app.get(f"{attempt}/assets/{{sha256}}", include_in_schema=False)(transfers.asset)
    app.put(f"{attempt}/result", include_in_schema=False)(transfers.result)
    app.put(f"{attempt}/artifacts/{{name:path}}", include_in_schema=False)(transfers.artifact)
    app.post(f"{attempt}/artifacts/{{name:path}}", include_in_schema=False)(
        transfers.placed_artifact
    )
    app.put(f"{attempt}/bundle", include_in_schema=False)(transfers.bundle)
    app.put(f"{attempt}/checkpoint", include_in_schema=False)(transfers.put_checkpoint)
    app.get(f"{attempt}/checkpoint", include_in_schema=False)(transfers.get_checkpoint)
    app.get(f"{attempt}/order", include_in_schema=False)(attempt_door.order)
    app.post(f"{attempt}/messages", include_in_schema=False)(attempt_door.messages)
    mount(app, parts)

    @app.get("/health", operation_id="health", summary="Whether the controller is well")
    async def get_health() -> JSONResponse:
        """Open to everybody: it says nothing about jobs but how many there are."""
        status, body = await health()
        return JSONResponse(body, status)

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

    return app
