"""An agent whose GPU other programs use too, on a fake driver."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from corral.agent.agent import Agent
from corral.agent.gpus.nvidia import Nvml
from corral.core.job import Needs
from corral.protocol import messages as wire
from corral.settings import load
from tests.agent.fake_controller import FakeController
from tests.fake_nvml import VARIABLE, FakeCards
from tests.fake_nvml import pynvml as fake

A = "GPU-aaaa"
GAME = 1
"""A process that is there and not ours."""


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCards:
    made = FakeCards(tmp_path / "cards.json")
    monkeypatch.setenv(VARIABLE, made.environ[VARIABLE])
    made.add(A, temperature=50, busy=10)
    return made


@pytest.fixture
async def agent(
    tmp_path: Path, controller: FakeController, cards: FakeCards
) -> AsyncIterator[Agent]:
    config = load(tmp_path, {"log_level": "error"}, environ={})
    made = Agent(config, embedded=False, driver=Nvml(fake))
    running = asyncio.create_task(made.run())
    await controller.expect(wire.WorkerHeartbeat)
    yield made
    made.leave(0.0, reason="the test is over", for_good=True)
    await running


async def test_what_waits_goes_back_while_others_hold_the_card_and_what_runs_stays(
    agent: Agent, controller: FakeController, cards: FakeCards
) -> None:
    register = await controller.expect(wire.WorkerRegister)
    assert [gpu.uuid for gpu in register.capabilities.gpus] == [A]
    assert (register.readings[0].temperature_c, register.readings[0].utilisation) == (50.0, 0.1)

    running = controller.job(time.sleep, 600, needs=Needs(gpus=1))
    waiting = controller.job(abs, -1, needs=Needs(gpus=1))
    plain = controller.job(abs, -2)
    await controller.send(running, waiting)
    began = await controller.expect(wire.JobStarted, running.job)
    assert began.devices == (A,)
    job = psutil.Process().children(recursive=True)[-1].pid
    cards.use(A, {GAME: 20.0, job: 3.0})
    returned = await controller.expect(wire.JobReturned, waiting.job)
    assert returned.reason == "processes that are not Corral's use the VRAM that it needs"
    told = [one for one in controller.heard if isinstance(one, wire.WorkerHeartbeat)][-1]
    place = controller.heard.index(told)
    assert place < controller.heard.index(returned), "the controller knows before it is returned"
    assert (told.readings[0].others_gb, told.readings[0].ours_gb) == (20.0, 3.0)

    more = controller.job(abs, -3, needs=Needs(gpu_tenths=5))
    await controller.send(more, plain)
    assert await controller.value(plain.job) == 2, "others take nothing from jobs without a GPU"
    await controller.expect(wire.JobReturned, more.job)
    await controller.send(wire.JobCancel(running.job, 1, grace_s=0.0))
    await controller.failed(running.job)
    mark = len(controller.heard)
    cards.use(A, {})
    await controller.expect(
        wire.WorkerHeartbeat,
        where=lambda beat: (
            any(beat is one for one in controller.heard[mark:])
            and beat.readings[0].others_gb == 0.0
        ),
    )
    again = controller.job(abs, -4, needs=Needs(gpus=1))
    await controller.send(again)
    assert await controller.value(again.job) == 4


async def test_a_driver_that_is_loaded_after_the_agent_makes_it_register_again(
    tmp_path: Path, controller: FakeController, cards: FakeCards
) -> None:
    cards.say(gone="Driver Not Loaded")
    config = load(tmp_path, {"log_level": "error"}, environ={})
    agent = Agent(config, embedded=False, driver=Nvml(fake))
    running = asyncio.create_task(agent.run())
    first = await controller.expect(wire.WorkerRegister)
    assert first.capabilities.gpus == ()
    kept = controller.job(time.sleep, 600)
    await controller.expect(wire.WorkerHeartbeat)
    await controller.send(kept)
    await controller.expect(wire.JobStarted, kept.job)
    cards.say(gone="")
    await agent._parts.gpus.look()  # what it does once a minute
    again = await controller.expect(wire.WorkerRegister, count=2)
    assert [gpu.uuid for gpu in again.capabilities.gpus] == [A]
    assert again.attempts == ((kept.job, 1),)
    job = controller.job(abs, -1, needs=Needs(gpus=1))
    await controller.expect(wire.WorkerHeartbeat, where=lambda beat: bool(beat.readings))
    await controller.send(job)
    assert await controller.value(job.job) == 1
    agent.leave(0.0, reason="the test is over", for_good=True)
    await running
