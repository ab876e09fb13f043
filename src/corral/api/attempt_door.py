"""The attempts' door: the bytes of one attempt, for whoever holds its token; for a process without
an agent also its order, and messages, which are answered when on disk, with whether to end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, RedirectResponse, Response
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace
from starlette.background import BackgroundTask

from corral.api import incoming
from corral.api.auth import bearer
from corral.api.parts import Parts
from corral.api.rest.answers import body_of
from corral.controller.auth.tokens import MESSAGES, AttemptTokens
from corral.core.errors import (
    ArtifactTooLarge,
    BlobNotFound,
    Conflict,
    CorralError,
    Forbidden,
    InvalidJob,
    ResultTooLarge,
    Unavailable,
)
from corral.core.events import ArtifactStored, CheckpointStored
from corral.core.job import Blob, FunctionCall, Head, Input, JobId, decode_document
from corral.core.text import is_digest
from corral.engines.engine import Engine
from corral.engines.posted import Mailbox, Posted
from corral.protocol.attempt_messages import MOST_BYTES, AttemptMessages
from corral.runtime.standalone.ticket import AttemptOrder

MAX_NAME = 512
MOST_BUNDLED = 1_000
"""Artifacts that come together: each takes a file of the blobs and a record of the journal."""


class Placed(Struct, forbid_unknown_fields=True):
    """An artifact that goes to the shared root or to the bucket."""

    size: Annotated[int, Meta(ge=0, le=2**53)]
    sha256: str = ""


class Bundled(Struct, forbid_unknown_fields=True):
    """One of several artifacts that come together."""

    name: str
    size: Annotated[int, Meta(ge=0, le=2**53)]


class AttemptDoor:
    def __init__(
        self,
        parts: Parts,
        tokens: AttemptTokens,
        engines: Mapping[str, Engine],
        *,
        artifact_limit: int,
    ) -> None:
        self._store, self._blobs, self._limits = parts.store, parts.blobs, parts.limits
        self._parts, self._tokens, self._engines = parts, tokens, engines
        self._artifact_limit = artifact_limit
        self._fetched: Counter[str] = Counter()
        """Checkpoints that are on their way to an attempt now."""

    def routes(self) -> APIRouter:
        router = APIRouter(prefix="/attempts/{job}/{attempt}", include_in_schema=False)
        router.get("/packages/{sha256}")(self.package)
        router.get("/assets/{sha256}")(self.asset)
        router.put("/result")(self.result)
        router.put("/artifacts/{name:path}")(self.artifact)
        router.post("/artifacts/{name:path}")(self.placed_artifact)
        router.put("/bundle")(self.bundle)
        router.put("/checkpoint")(self.put_checkpoint)
        router.get("/checkpoint")(self.get_checkpoint)
        router.get("/order")(self.order)
        router.post("/messages")(self.messages)
        return router

    async def _head(self, request: Request, job: str, attempt: int, use: str = "") -> Head:
        self._tokens.check(bearer(request.headers.get("authorization")), job, attempt, use)
        return await self._current(job, attempt)

    async def _current(self, job: str, attempt: int) -> Head:
        """The job, where this attempt is the one that a worker has now."""
        early = self._parts.loop.early.get(job)
        if early is not None and early.written is not None:
            self._store.hurry()
            await asyncio.wait([early.written])  # it runs already, and is not known before that
        head = self._store.head(job)
        if head.attempt != attempt or not head.state.held:
            raise Conflict(f"Attempt {attempt} of job {job} is over.", job_id=job)
        return head

    # --- what it runs, and what it runs on ---

    async def package(self, request: Request, job: str, attempt: int, sha256: str) -> FileResponse:
        head = await self._head(request, job, attempt)
        document = decode_document(self._store.journal.document(head.submitted_seq))
        if sha256 not in {blob.sha256 for blob in document.blobs()}:
            raise Forbidden(f"Job {job} does not name the package {sha256[:64]}.", job_id=job)
        return FileResponse(self._blobs.open_path(sha256))

    async def asset(self, request: Request, job: str, attempt: int, sha256: str) -> Response:
        """The bytes of one input, or the way to them where a bucket has them; or of the modules
        that a function names."""
        head = await self._head(request, job, attempt)
        document = decode_document(self._store.journal.document(head.submitted_seq))
        named = next((one for one in document.inputs if one.sha256 == sha256), None)
        if isinstance(document.work, FunctionCall) and document.work.code is not None:
            code = document.work.code
            named = Input("code", sha256, code.size) if code.sha256 == sha256 else named
        if named is None:
            raise Forbidden(f"Job {job} does not name the asset {sha256[:64]}.", job_id=job)
        found = await self._parts.assets.source(named)
        if isinstance(found, str):
            return RedirectResponse(found)
        if isinstance(found, Path):
            return FileResponse(found)
        # By its descriptor: under its path there may be another one by now.
        same = f"/proc/self/fd/{found.fileno()}"
        return FileResponse(same, background=BackgroundTask(found.close))

    # --- what it leaves ---

    async def result(self, request: Request, job: str, attempt: int) -> dict[str, object]:
        await self._head(request, job, attempt)
        blob = await self._blobs.put(
            incoming.pieces(request, self._limits),
            limit=self._limits.result_bytes,
            too_large=ResultTooLarge,
            setting="limits.result_bytes",
        )
        return _told(blob)

    async def artifact(
        self, request: Request, job: str, attempt: int, name: str
    ) -> dict[str, object]:
        await self._head(request, job, attempt)
        name = _artifact_name(name, job)
        blob = await self._kept(request)
        await self._head(request, job, attempt)  # it may have ended while the bytes came
        await self._store.append([_stored(job, attempt, name, blob)])
        return _told(blob)

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
        stored = zip(names, blobs, strict=True)
        await self._store.append([_stored(job, attempt, name, blob) for name, blob in stored])
        return [_told(blob) for blob in blobs]

    async def placed_artifact(
        self, request: Request, job: str, attempt: int, name: str
    ) -> dict[str, object]:
        """Without a digest: the URL to send an artifact to. With it: the word that it is there."""
        await self._head(request, job, attempt)
        name = _artifact_name(name, job)
        told = body_of(await incoming.whole(request, self._limits), Placed)
        if not told.sha256:
            return {"put_url": await self._parts.artifacts.place(job, attempt, name, told.size)}
        if not is_digest(told.sha256):
            raise InvalidJob(f"{told.sha256[:80]!r} is no sha256.", job_id=job)
        uri = await self._parts.artifacts.stored(job, attempt, name, told.size)
        await self._head(request, job, attempt)
        blob = Blob(told.sha256, told.size)
        await self._store.append([_stored(job, attempt, name, blob, uri)])
        return _told(blob)

    async def put_checkpoint(self, request: Request, job: str, attempt: int) -> Response:
        await self._head(request, job, attempt)
        blob = await self._kept(request, owner=job)
        # It may have been lost while the bytes came.
        before = (await self._head(request, job, attempt)).course.checkpoint
        fact = CheckpointStored(job, time.time(), attempt, blob.size, blob.sha256)
        await self._store.append([fact])
        return _json(_told(blob), BackgroundTask(self._free_checkpoint, job, before))

    async def _free_checkpoint(self, job: str, before: str) -> None:
        """A newer one is durable: nothing goes on from this one any more."""
        async with self._parts.retention.busy:
            now = self._store.head(job).course.checkpoint
            if before and before != now and not self._fetched[before]:
                path = self._blobs.free(before, job)
                if path is not None:
                    await asyncio.to_thread(path.unlink)

    async def get_checkpoint(self, request: Request, job: str, attempt: int) -> FileResponse:
        head = await self._head(request, job, attempt)
        if not head.course.checkpoint:
            raise BlobNotFound(f"Job {job} has stored no checkpoint yet.", job_id=job)
        sha256 = head.course.checkpoint
        path = self._blobs.open_path(sha256)
        self._fetched[sha256] += 1

        def fetched() -> None:
            self._fetched[sha256] -= 1
            if not self._fetched[sha256]:
                del self._fetched[sha256]

        return FileResponse(path, background=BackgroundTask(fetched))

    async def _kept(self, request: Request, owner: str = "") -> Blob:
        return await self._blobs.put(
            incoming.pieces(request, self._limits),
            limit=self._artifact_limit,
            too_large=ArtifactTooLarge,
            setting="artifact_limit",
            owner=owner,
        )

    # --- for a process without an agent ---

    async def order(self, request: Request, job: str, attempt: int) -> Response:
        head = await self._head(request, job, attempt, MESSAGES)
        self._mailbox_of(head)
        document, digest = self._store.document(head)
        order = AttemptOrder(
            job=job,
            attempt=attempt,
            document=Raw(document),
            digest=digest,
            token=self._tokens.issue(job, attempt),
            needs=head.shape.needs,
            duration_s=head.duration_s,
            checkpoint=head.course.checkpoint,
            correlation_id=head.given.correlation_id,
            artifacts="bucket" if self._parts.artifacts.where == "bucket" else "",
            secrets=self._parts.vault.values(head.given.secrets) if head.given.secrets else {},
        )
        return _json(order)

    async def messages(self, request: Request, job: str, attempt: int) -> Response:
        mailbox = self._mailbox_of(await self._head(request, job, attempt, MESSAGES))
        body = await incoming.whole(request, self._limits, MOST_BYTES)
        batch: AttemptMessages = body_of(body, AttemptMessages)
        head = await self._current(job, attempt)  # it may have ended while the bytes came
        answer = await mailbox.post(job, attempt, head.worker, batch)
        if not batch.messages and answer.cancel is None:
            try:
                head = await self._current(job, attempt)  # or while it waited
            except CorralError:
                mailbox.forget(job, attempt)
                raise
            if head.course.extended_s:
                answer = replace(answer, duration_s=head.duration_s)
        return _json(answer)

    def _mailbox_of(self, head: Head) -> Mailbox:
        engine = self._engines.get(head.engine)
        if engine is None:  # as a worker that is away: its attempt goes on, and asks again
            told = f"The engine {head.engine!r} of job {head.id} is not among `engines` here."
            raise Unavailable(told, job_id=head.id)
        if isinstance(engine, Posted):
            return engine.mailbox
        told = f"Attempt {head.attempt} of job {head.id} reports through its worker."
        raise Conflict(told, job_id=head.id)


def _artifact_name(name: str, job: JobId) -> str:
    path = PurePosixPath(name)
    odd = "\\" in name or not path.parts or not name.isprintable()
    if odd or path.is_absolute() or ".." in path.parts:
        raise InvalidJob(f"{name[:100]!r} is no name for an artifact.", job_id=job)
    if not 0 < len(name) <= MAX_NAME:
        raise InvalidJob(f"An artifact's name has 1 to {MAX_NAME} characters.", job_id=job)
    return str(path)


def _stored(job: JobId, attempt: int, name: str, blob: Blob, uri: str = "") -> ArtifactStored:
    return ArtifactStored(job, time.time(), attempt, name, blob.size, blob.sha256, uri)


def _told(blob: Blob) -> dict[str, object]:
    return {"sha256": blob.sha256, "size": blob.size}


def _json(value: object, then: BackgroundTask | None = None) -> Response:
    data = msgspec.json.encode(value)
    return Response(data, media_type="application/json", background=then)
