"""A retry goes on from the last checkpoint, under limits of its own."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from corral.controller.jobs.retrying import Retry
from corral.core.errors import InvalidJob
from corral.core.events import AttemptStarted, CheckpointStored
from corral.core.images.pipeline import ADetailer, Record, Txt2Img
from corral.core.job import Failure, Job, Needs, PipelineCall, decode_document
from tests.controller.shell import Shell, shell

FOREVER = 3600.0
BROKEN = Failure(code="bad_package", message="it broke")


async def stored(corral: Shell, job: str, data: bytes) -> str:
    """A checkpoint of the job, with bytes, as its attempt stores it."""
    blob = await corral.queue._blobs.put_bytes(data)
    fact = CheckpointStored(job=job, at=1.0, attempt=1, size=blob.size, sha256=blob.sha256)
    await corral.store.append([fact])
    return blob.sha256


async def failed(corral: Shell, job: str) -> None:
    await corral.until(job, AttemptStarted)
    corral.engine.fail(job, 1, BROKEN)
    await corral.until_ended(job)


async def test_what_did_not_succeed_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    async with shell(tmp_path, seconds=lambda _: FOREVER) as corral:
        first = await corral.submit()
        await corral.until(first, AttemptStarted)
        await stored(corral, first, b"one")
        last = await stored(corral, first, b"two")
        await failed(corral, first)
        second = await corral.queue.retry(first)
        await corral.until(second, AttemptStarted)
        assert corral.store.head(second).course.checkpoint == last
        await failed(corral, second)  # which came to no checkpoint of its own
        third = await corral.queue.retry(second)
        anew = await corral.queue.retry(second, Retry(from_start=True))
        for job, checkpoint in ((third, last), (anew, "")):
            await corral.until(job, AttemptStarted)
            assert corral.store.head(job).course.checkpoint == checkpoint


async def test_what_succeeded_or_lost_its_bytes_begins_at_the_start(tmp_path: Path) -> None:
    async with shell(tmp_path) as corral:
        done = await corral.submit()
        await corral.until_ended(done)
        await stored(corral, done, b"late")
        assert document(corral, await corral.queue.retry(done)).checkpoint == ""
    async with shell(tmp_path / "other", seconds=lambda _: FOREVER) as corral:
        job = await corral.submit()
        await corral.until(job, AttemptStarted)
        gone = await stored(corral, job, b"gone")
        await failed(corral, job)
        corral.queue._blobs.path(gone).unlink()
        assert document(corral, await corral.queue.retry(job)).checkpoint == ""


async def test_limits_are_given_anew(tmp_path: Path) -> None:
    async with shell(tmp_path) as corral:
        job = await corral.submit()
        await corral.until_ended(job)
        asked = Retry.asked(duration_s=7200.0, retries=3, memory_gb=2.0, worker="w9")
        again = document(corral, await corral.queue.retry(job, asked))
        assert (again.duration_s, again.retries, again.needs.memory_gb) == (7200.0, 3, 2.0)
        assert again.needs.worker == "w9"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"duration_s": 0.5}, "Expected `float` >= 1"),
        ({"duration_s": math.nan}, "duration_s"),
        ({"duration_s": 1e9}, "604800"),
        ({"retries": 101}, "retries"),
        ({"retries": -1}, "retries"),
        ({"memory_gb": -1.0}, "memory_gb"),
        ({"worker": "a\x1bb"}, "printable"),
    ],
)
def test_what_cannot_be_given_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        Retry.asked(**given)
    assert said.replace("`", "") in refused.value.message


def document(corral: Shell, job: str):  # type: ignore[no-untyped-def]
    return decode_document(corral.store.journal.document(corral.store.head(job).submitted_seq))


def test_images_are_rendered_again_by_the_backend_that_is_asked_for() -> None:
    record = Record(positive="x", model="sdxl", stages=(Txt2Img(), ADetailer()))
    first = Job(work=PipelineCall(record), needs=Needs(task="render+adetailer", gpus=1))

    again = Retry.asked(backend="comfyui").of("j", first, "")

    assert isinstance(again.work, PipelineCall)
    assert again.work.record.backend == "comfyui"
    assert (again.needs.task, again.needs.gpus) == ("comfyui+adetailer", 1)
    drawn = Job(work=PipelineCall(Record(positive="x", model="sketch")))
    assert Retry.asked(backend="sketch").of("j", drawn, "").work == drawn.work
    with pytest.raises(InvalidJob):
        Retry.asked(backend="paint")


async def test_only_images_have_a_backend(tmp_path: Path) -> None:
    async with shell(tmp_path) as corral:
        job = await corral.submit()
        await corral.until_ended(job)
        with pytest.raises(InvalidJob, match="image job"):
            await corral.queue.retry(job, Retry(backend="webui"))
