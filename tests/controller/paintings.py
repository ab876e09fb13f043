"""Image jobs without workers: their facts go straight into a store, as if somebody rendered."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from corral.controller.files.blobs import Blobs
from corral.controller.images.learning import Learnings
from corral.controller.journal.database import Journal
from corral.controller.store import Store
from corral.controller.world import World
from corral.core.events import (
    ArtifactStored,
    AttemptPlaced,
    AttemptStarted,
    JobFailed,
    JobSubmitted,
    JobSucceeded,
    Journaled,
)
from corral.core.ids import Ids
from corral.core.images.pipeline import Record, Txt2Img, Upscale
from corral.core.job import (
    Blob,
    Failure,
    FunctionCall,
    Job,
    JobId,
    PipelineCall,
    document_digest,
    encode_document,
)
from corral.home import Home

PROMPT = "a castle, rain"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def result_of(job: JobId, record: Record, **more: Any) -> bytes:
    """What a runner says of a job that it rendered."""
    images = [
        {
            "name": f"{job}-{index:03}.png",
            "pixel_sha256": digest(f"pixels {record.seed + index}"),
            "file_sha256": digest(f"file {job} {index}"),
            "size": [64, 64],
            "seed": record.seed + index,
        }
        for index in range(record.batch_size)
    ]
    stages = [{"stage": "txt2img", "backend": "sketch", "seconds": 1.5, "slot_seconds": 1.51}]
    told = {"images": images, "stages": stages, "backend": "sketch", "warnings": [], **more}
    return json.dumps(told).encode()


class Studio:
    """A store, and somebody who learns from it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._held = Home(home)
        self._held.take()
        self.store = Store(Journal(home / "journal"), World())
        self.store.recover()
        self.store.world.names["w1"] = "ranch"
        self.blobs = Blobs(home / "blobs")
        self.learnings = Learnings(self.store, self.blobs, home / "learning")
        self._ids = Ids(time.time_ns())

    def job(self, work: FunctionCall | PipelineCall | None = None, **fields: Any) -> Job:
        record = Record(PROMPT, model="m1", seed=7, stages=(Txt2Img(), Upscale()))
        return Job(work=work or PipelineCall(record), **fields)

    async def submit(self, job: Job, document: bytes = b"") -> JobId:
        job_id = self._ids.new(time.time(), seed=1)
        document = document or encode_document(job)
        submitted = JobSubmitted(
            job=job_id,
            at=time.time(),
            needs=job.needs,
            digest=document_digest(document),
            workload=job.workload,
            batch=job.batch,
            name=job.name,
            labels=tuple(job.labels.items()),
        )
        await self.store.enqueue([submitted], {job_id: document})
        return job_id

    async def begin(self, job: JobId, attempt: int = 1) -> None:
        now = time.time()
        placed = AttemptPlaced(job=job, at=now, attempt=attempt, worker="w1")
        await self.store.append([placed, AttemptStarted(job=job, at=now, attempt=attempt)])

    async def paint(self, job: Job | None = None, document: bytes = b"", **more: Any) -> JobId:
        """From its submission to its success; `more` is in its result."""
        job = job or self.job()
        job_id = await self.submit(job, document)
        await self.begin(job_id)
        facts: list[Journaled] = []
        if isinstance(job.work, PipelineCall):
            data = result_of(job_id, job.work.record, **more)
            name = f"{job_id}-000.png"
            stored = digest(f"file {job_id} 0")
            facts.append(ArtifactStored(job_id, time.time(), 1, name, 1000, stored))
            blob = Blob.of(data)
            if blob.data is None:
                await self.blobs.put_bytes(data)
        else:
            blob = Blob.of(b"42")
        facts.append(JobSucceeded(job=job_id, at=time.time(), attempt=1, seconds=2.5, result=blob))
        await self.store.append(facts)
        return job_id

    async def compute(self) -> JobId:
        """A job of another kind."""
        call = FunctionCall(function=Blob.of(b"f"), arguments=Blob.of(b"x"))
        return await self.paint(self.job(call))

    async def fail(self, job: Job | None = None) -> JobId:
        job_id = await self.submit(job or self.job())
        await self.begin(job_id)
        failure = Failure(code="backend_down", message="It does not answer.")
        await self.store.append([JobFailed(job_id, time.time(), 1, failure)])
        return job_id

    def is_image(self, job: JobId) -> bool:
        return self.store.head(job).shape.workload == "pipeline"

    def lines(self) -> list[dict[str, Any]]:
        """What is on the disk, each line whole."""
        path = self.learnings.records.path
        data = path.read_bytes() if path.exists() else b""
        assert data.endswith(b"\n") or not data
        return [json.loads(line) for line in data.splitlines()]

    def learned(self) -> list[JobId]:
        return [line["job_id"] for line in self.lines()]

    async def exported(self, *chosen: Any) -> list[dict[str, Any]]:
        chunks = [chunk async for chunk in self.learnings.exported(*chosen)]
        return [json.loads(line) for line in b"".join(chunks).splitlines()]

    @contextlib.asynccontextmanager
    async def learning(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.learnings.run())
        try:
            await self.learnings.caught_up()
            yield
            await self.learnings.caught_up()
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        self.learnings.close()
        await self.store.close()
        self._held.release()


@contextlib.asynccontextmanager
async def studio(home: Path, *, learning: bool = True) -> AsyncIterator[Studio]:
    made = Studio(home)
    try:
        async with made.learning() if learning else contextlib.nullcontext():
            yield made
    finally:
        await made.close()


def pixels(lines: list[dict[str, Any]]) -> Iterator[str]:
    return (image["pixel_sha256"] for line in lines for image in line["images"])
