"""Agents in this process, with a fake controller to talk to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from corral.agent.agent import Agent
from corral.protocol import messages as wire
from corral.settings import load
from tests import kit
from tests.agent.fake_controller import FakeController

StartAgent = Callable[..., Awaitable[asyncio.Task[int]]]


BOTH_KINDS = [
    pytest.param(False, id="forked"),
    pytest.param(True, id="spawned", marks=pytest.mark.long),
]
"""Whether runners are spawned, which few systems need."""


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[FakeController]:
    fake = FakeController()
    await fake.listen()
    fake.write_address(tmp_path)
    yield fake
    await fake.stop()


@pytest.fixture
def spawned() -> bool:
    """Whether runners are spawned, as on Windows. Modules that hold for both kinds say so."""
    return False


@pytest.fixture
async def start(
    tmp_path: Path, controller: FakeController, spawned: bool
) -> AsyncIterator[StartAgent]:
    """Starts an agent in this process and waits until it has registered."""
    agents: list[tuple[Agent, asyncio.Task[int]]] = []

    async def started(*, embedded: bool = False, **settings: Any) -> asyncio.Task[int]:
        kit.give(tmp_path)
        flags = {"log_level": "error", "worker.spawn": spawned, **settings}
        agent = Agent(load(tmp_path, flags, environ={}), embedded=embedded)
        running = asyncio.create_task(agent.run())
        agents.append((agent, running))
        await controller.expect(wire.WorkerHeartbeat)
        return running

    yield started
    for agent, running in agents:
        if not running.done():
            agent.leave(0.0, reason="the test is over", for_good=True)
        await running
