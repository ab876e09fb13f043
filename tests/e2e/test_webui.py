"""Image jobs by a WebUI, end to end: a real controller and agent, a server that sets traps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from corral.core.errors import JobCancelled
from corral.core.images.pipeline import ADetailer, Img2Img, Record, Txt2Img, Upscale
from corral.core.job import Job, Needs, PipelineCall
from corral.sdk.handles import AsyncHandle
from tests.e2e.test_pipelines import YAML, says
from tests.eventually import eventually_async
from tests.fakes.webui import FakeWebUI
from tests.fakes.webui_parts import TITLES, digest_of
from tests.in_process import Inside, controller

CHAIN = Record(
    positive="a castle",
    model="beta",
    sampler="euler",
    scheduler="karras",
    steps=3,
    width=64,
    height=64,
    batch_size=2,
    seed=7,
    stages=(Txt2Img(), Img2Img(), ADetailer(), Upscale(factor=2.0)),
)


@pytest.fixture
def fake() -> Iterator[FakeWebUI]:
    with FakeWebUI() as fake:
        yield fake


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """What the restart command leaves."""
    return tmp_path / "started"


@pytest.fixture
async def inside(fake: FakeWebUI, started: Path, tmp_path: Path) -> AsyncIterator[Inside]:
    entry = f"{{type: webui, url: '{fake.url}', restart: 'touch {started}'}}"
    async with controller(tmp_path / "home", YAML % f"backends: [{entry}]") as made:
        await made.until_connected("here")
        yield made


async def submitted(inside: Inside, record: Record) -> AsyncHandle:
    return await inside.submit(Job(work=PipelineCall(record), needs=Needs(task="webui"), retries=2))


async def test_every_stage_and_the_same_pixels_again(
    inside: Inside, fake: FakeWebUI, tmp_path: Path
) -> None:
    pixels = []
    for _ in range(2):
        handle = await submitted(inside, CHAIN)
        result = await handle.result(timeout=60)
        assert [one["stage"] for one in result["stages"]] == [
            "txt2img", "img2img", "adetailer", "upscale",
        ]  # fmt: skip
        assert [one["size"] for one in result["images"]] == [[128, 128]] * 2
        pixels.append([one["pixel_sha256"] for one in result["images"]])
    assert pixels[0] == pixels[1]
    assert len(set(pixels[0])) == 2
    card = json.loads((await handle.download(f"{handle.id}-001.json", tmp_path)).read_bytes())
    assert card["models"]["beta"] == digest_of(TITLES[1])
    assert card["software"]["webui"] == "v1.10.1"
    assert fake.most_at_once == 1


@pytest.mark.long
async def test_a_cancel_stops_the_server(inside: Inside, fake: FakeWebUI) -> None:
    fake.step_s = 0.05
    handle = await submitted(inside, replace(CHAIN, steps=1000, stages=(Txt2Img(),)))
    await says(handle, "txt2img: step ")
    await handle.cancel()
    await eventually_async(
        lambda: fake._state["job_count"] == 0, "its turn is over, long before its end", 20
    )
    with pytest.raises(JobCancelled):
        await asyncio.wait_for(handle.result(), 10)
    assert not (await handle.status()).artifacts


async def test_a_server_that_died_is_started_again_and_the_job_ends_well(
    inside: Inside, fake: FakeWebUI, started: Path
) -> None:
    fake.die_at, fake.step_s = 2, 0.02
    handle = await submitted(inside, replace(CHAIN, stages=(Txt2Img(),)))
    await eventually_async(started.exists, "it was started again")
    fake.restart()
    result = await handle.result(timeout=60)
    assert result["images"][0]["seed"] == CHAIN.seed
    view = await handle.status()
    assert view.attempt > 1
    assert any("backend_down" in line for line in (await handle.why()).history)


async def test_an_outage_costs_no_job_anything_and_holds_nobody_else_up(
    inside: Inside, fake: FakeWebUI
) -> None:
    fake.die()
    jobs = [
        await submitted(inside, replace(CHAIN, seed=seed, stages=(Txt2Img(),))) for seed in (1, 2)
    ]

    async def waits() -> bool:
        told = [str((await job.why()).workers) for job in jobs]
        return all(fake.url in one and "does not answer" in one for one in told)

    await eventually_async(waits, "they wait for the server")
    assert await (await inside.client.submit(abs, (-3,))).result(timeout=60) == 3
    assert not (await inside.client.workers())[0].circuit
    tried = [(await job.status()).attempt for job in jobs]
    fake.restart()
    for job in jobs:
        assert (await job.result(timeout=60))["backend"] == "webui"
    done = [(await job.status()).attempt for job in jobs]
    assert all(after <= before + 1 for before, after in zip(tried, done, strict=True))
    assert max(done) <= 3
