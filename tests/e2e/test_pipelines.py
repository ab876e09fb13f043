"""Image jobs end to end: a real controller, real workers, the backend that draws."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace
from PIL import Image

from corral.core.errors import JobCancelled, JobFailed
from corral.core.images.pipeline import Img2Img, Record, Txt2Img, Upscale, digest_of
from corral.core.job import Job, Needs, PipelineCall
from corral.runtime.pipeline import images
from corral.sdk.handles import AsyncHandle
from tests.e2e.test_joining import Machine
from tests.eventually import eventually_async
from tests.in_process import Inside, controller

CASTLE = Record(positive="a castle in the rain", model="sketch", width=64, height=64, seed=7)
SKETCH = Needs(task="sketch")
YAML = (
    "tls: always\nadvertise: 127.0.0.1\nshutdown_grace_s: 0.2\nbackoff_s: 0.1\n"
    "worker: {cpus: 2, name: here, %s}\n"
)


def image_job(record: Record, needs: Needs = SKETCH, **fields: object) -> Job:
    return Job(work=PipelineCall(record), needs=needs, **fields)  # type: ignore[arg-type]


@pytest.fixture
async def inside(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Inside]:
    worker = getattr(request, "param", "allow_code: true")
    async with controller(tmp_path / "home", YAML % worker) as made:
        await made.until_connected("here")
        yield made


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "machine")
    yield made
    made.stop()


async def joined(machine: Machine, inside: Inside, worker: str) -> None:
    machine.home.mkdir()
    (machine.home / "corral.yaml").write_text(
        f"shutdown_grace_s: 0.2\nworker: {{cpus: 2, {worker}}}\n"
    )
    machine.join(await inside.client.admin.invite_worker(), "--name", "there")
    await inside.until_connected("there")


async def says(handle: AsyncHandle, message: str) -> None:
    """Until its progress begins so."""

    async def begins() -> bool:
        progress = (await handle.status()).progress
        return progress is not None and progress.message.startswith(message)

    await eventually_async(begins, f"progress says {message!r}")


@pytest.mark.parametrize("inside", ["allow_code: true", "allow_code: false"], indirect=True)
async def test_a_record_becomes_an_image_with_its_card(inside: Inside, tmp_path: Path) -> None:
    handle = await inside.submit(image_job(CASTLE))
    result = await handle.result(timeout=30)
    (made,) = result["images"]
    assert made["name"] == f"{handle.id}-000.png"
    assert result["record_digest"] == digest_of(CASTLE)
    names = {one.name: one.file_sha256 for one in await handle.artifacts()}
    assert names[made["name"]] == made["file_sha256"]
    assert names.keys() == {made["name"], f"{handle.id}-000.json"}
    png = await handle.download(made["name"], tmp_path)
    card = json.loads((await handle.download(f"{handle.id}-000.json", tmp_path)).read_bytes())
    image = Image.open(io.BytesIO(png.read_bytes()))
    assert images.pixel_sha256(image) == made["pixel_sha256"] == card["pixel_sha256"]
    assert (card["job"], card["worker"]) == (handle.id, "here")
    view = await handle.status()
    assert view.workload == "pipeline"
    assert view.progress is not None
    assert view.progress.metrics["txt2img.seconds"] >= 0


async def test_the_same_record_gives_the_same_pixels(inside: Inside) -> None:
    both = [await inside.submit(image_job(CASTLE)) for _ in range(2)]
    one, other = [(await handle.result(timeout=30))["images"][0] for handle in both]
    assert one["pixel_sha256"] == other["pixel_sha256"]
    assert one["name"] != other["name"]


async def test_a_backend_that_nobody_has_is_waited_for(inside: Inside) -> None:
    handle = await inside.submit(image_job(CASTLE, Needs(task="webui")))
    why = await handle.why()
    assert "it does not take webui tasks" in [one.reason for one in why.workers]


@pytest.mark.parametrize("inside", ["backends: []"], indirect=True)
async def test_a_worker_without_backends_takes_no_images(inside: Inside) -> None:
    handle = await inside.submit(image_job(CASTLE, Needs()))
    why = await handle.why()
    assert "it does not accept pipeline jobs" in [one.reason for one in why.workers]


SLOW = "backends: [{type: sketch, step_s: 0.3}]"


@pytest.mark.parametrize("inside", [SLOW], indirect=True)
async def test_a_cancel_during_a_stage_ends_it(inside: Inside) -> None:
    handle = await inside.submit(image_job(CASTLE))
    await says(handle, "txt2img: step 2")
    await handle.cancel()
    with pytest.raises(JobCancelled):
        await asyncio.wait_for(handle.result(), 10)
    view = await handle.status()
    assert not view.artifacts


@pytest.mark.long
async def test_after_a_worker_is_lost_the_next_stage_goes_on(
    inside: Inside, machine: Machine
) -> None:
    await joined(machine, inside, SLOW)
    await inside.client.admin.change_worker("here", draining=True)
    record = replace(CASTLE, steps=1, stages=(Txt2Img(), Img2Img(steps=1000)))
    handle = await inside.submit(image_job(record, retries=2))
    await says(handle, "img2img: ")
    await inside.client.admin.change_worker("there", draining=True)
    await inside.client.admin.change_worker("here", draining=False)
    assert machine.process is not None
    for process in psutil.Process(machine.process.pid).children(recursive=True):
        process.kill()
    result = await handle.result(timeout=60)
    first, second = result["stages"]
    assert first["seconds"] > 0.3, "only the slow worker takes that long: it was not done again"
    view = await handle.status()
    assert (view.attempt, view.worker) == (2, "here")
    assert second["stage"] == "img2img"
    assert (await (await inside.submit(image_job(record))).result(30))["images"][0][
        "pixel_sha256"
    ] == result["images"][0]["pixel_sha256"]


SMALL = "gpus: [{name: small, vram_gb: 8}], backends: [{type: sketch, vram_gb: 0.01}]"
LARGE = "gpus: [{name: large, vram_gb: 24}]"


@pytest.mark.long
@pytest.mark.parametrize("inside", [SMALL], indirect=True)
async def test_out_of_memory_moves_it_to_a_bigger_card(inside: Inside, machine: Machine) -> None:
    record = replace(CASTLE, stages=(Txt2Img(), Upscale(factor=4.0)))
    needs = Needs(gpus=1, task="sketch")
    with pytest.raises(JobFailed) as failed:
        await (await inside.submit(image_job(record, needs))).result(timeout=30)
    assert failed.value.failure is not None
    assert failed.value.failure.code == "out_of_memory"
    await joined(machine, inside, LARGE)
    await inside.client.admin.change_worker("there", draining=True)
    handle = await inside.submit(image_job(record, needs, retries=2))
    await _attempted(handle)
    await inside.client.admin.change_worker("there", draining=False)
    result = await handle.result(timeout=60)
    view = await handle.status()
    assert view.worker == "there"
    assert result["images"][0]["seed"] == CASTLE.seed
    assert [one["stage"] for one in result["stages"]] == ["txt2img", "upscale"]


async def _attempted(handle: AsyncHandle) -> None:
    """Until its first attempt is over."""

    async def over() -> bool:
        return any("out_of_memory" in line for line in (await handle.why()).history)

    await eventually_async(over, "the first attempt is over")
