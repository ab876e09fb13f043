"""ComfyUI jobs on an agent, in a runner that is as confined as any."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.core.images.pipeline import Record, Txt2Img, Upscale
from corral.core.job import PipelineCall
from corral.protocol import messages as wire
from tests.agent.conftest import StartAgent
from tests.agent.fake_controller import FakeController
from tests.fakes.comfyui import FakeComfyUI, Hold
from tests.runtime.comfyui.test_workflow import MAP, WORKFLOW
from tests.runtime.harness import Controller as Transfers

CASTLE = Record(
    positive="a castle",
    model="anime",
    steps=3,
    width=64,
    height=64,
    stages=(Txt2Img(), Upscale(factor=2)),
)


@pytest.fixture
def transfers(controller: FakeController) -> Iterator[Transfers]:
    made = Transfers()
    made.token = "a token"
    controller.url = made.url
    yield made
    made.close()


@pytest.fixture
def server() -> Iterator[FakeComfyUI]:
    fake = FakeComfyUI()
    fake.start()
    yield fake
    if fake.hold is not None:
        fake.hold.released.set()
    fake.stop()


async def test_a_job_is_rendered_by_the_users_own_workflow(
    start: StartAgent,
    controller: FakeController,
    transfers: Transfers,
    server: FakeComfyUI,
    tmp_path: Path,
) -> None:
    file = tmp_path / "elsewhere" / "mine.json"
    file.parent.mkdir()
    file.write_text(json.dumps(WORKFLOW))
    workflow = {"file": str(file), "map": MAP}
    await start(
        **{"worker.backends": [{"type": "comfyui", "url": server.url, "workflow": workflow}]}
    )
    job = controller.dispatch(PipelineCall(CASTLE))
    await controller.send(job)

    completed = await controller.completed(job.job)

    assert completed.result is not None
    assert completed.result.data is not None
    outcome = json.loads(completed.result.data)
    (made,) = outcome["images"]
    assert made["size"] == [128, 128]
    assert [stage["backend"] for stage in outcome["stages"]] == ["comfyui", "comfyui"]
    card = json.loads(transfers.artifacts[f"{job.job}-000.json"])
    assert card["models"] == {"anime.safetensors": ""}
    assert card["software"]["comfyui"] == "0.7.0"
    assert server.submitted[0]["prompt"]["9"]["inputs"]["filename_prefix"] == "mine"


async def test_a_cancelled_job_leaves_the_server(
    start: StartAgent, controller: FakeController, transfers: Transfers, server: FakeComfyUI
) -> None:
    await start(**{"worker.backends": [{"type": "comfyui", "url": server.url}]})
    server.hold = Hold(2)
    job = controller.dispatch(PipelineCall(CASTLE))
    await controller.send(job)
    assert await asyncio.to_thread(server.hold.reached.wait, 30)

    await controller.send(wire.JobCancel(job.job, 1, 60.0))

    assert (await controller.failed(job.job)).failure.code == "cancelled"
    (entry,) = await asyncio.to_thread(server.wait_for_history, 1)
    assert entry["status"]["messages"][-1][0] == "execution_interrupted"
