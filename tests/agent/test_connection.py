"""Losing the controller, finding it again, and leaving it in order."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from pathlib import Path
from typing import cast

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.protocol import State

from corral.agent.agent import Agent
from corral.agent.connection import (
    MAX_FRAME_BYTES,
    AgentConnection,
    AgentSocket,
    ControllerAddress,
    jittered,
)
from corral.agent.runners.runner import LINE_LIMIT
from corral.core.worker import MOST_MODELS, NAMES_BYTES, Capabilities, Model, kept
from corral.locks import lock_file
from corral.protocol import messages as wire
from corral.settings import load
from tests import kit
from tests.agent.conftest import StartAgent
from tests.agent.fake_controller import FRAME_BYTES, FakeController


def wait_for(path: str) -> str:
    while not os.path.exists(path):
        time.sleep(0.01)
    return "seen"


def patient() -> None:
    time.sleep(600)


def test_an_address_may_be_given_as_the_controllers_own() -> None:
    def socket(url: str) -> str:
        return ControllerAddress(url=url, credential="", worker_id="").socket

    assert socket("http://10.0.0.1:8700") == "ws://10.0.0.1:8700/worker"
    assert socket("https://corral.local/") == "wss://corral.local/worker"
    assert socket("ws://10.0.0.1:8700/worker") == "ws://10.0.0.1:8700/worker"


async def test_an_agent_registers_with_what_it_has(
    controller: FakeController, start: StartAgent
) -> None:
    await start(**{"worker.labels": ["ssd"], "worker.memory_gb": 3.0})
    register = await controller.expect(wire.WorkerRegister)
    assert (register.worker_id, register.name) == ("w1", "here")
    assert register.runner_protocol == wire.VERSION
    has = register.capabilities
    assert (has.memory_gb, has.labels, has.workloads) == (3.0, ("ssd",), ("python", "pipeline"))
    assert has.enforced["duration"] in ("cgroup", "landlock", "process_tree")
    assert register.attempts == ()


async def test_a_running_attempt_survives_a_lost_connection(
    controller: FakeController, start: StartAgent, tmp_path: Path
) -> None:
    signal_file = tmp_path / "go"
    await start(**{"worker.read_paths": [str(tmp_path)]})
    job = controller.job(wait_for, str(signal_file))
    await controller.send(job)
    await controller.expect(wire.JobStarted, job.job)
    await controller.sockets[-1].close()
    register = await controller.expect(wire.WorkerRegister, count=2)
    assert register.attempts == ((job.job, 1),)
    await controller.expect(wire.JobStarted, job.job, count=2)
    signal_file.touch()
    assert await controller.value(job.job) == "seen"


async def test_a_result_is_said_again_until_it_is_received(
    controller: FakeController, start: StartAgent
) -> None:
    await start()
    controller.receives = False
    job = controller.job(os.getpid)
    await controller.send(job)
    first = await controller.expect(wire.JobCompleted, job.job)
    await controller.sockets[-1].close()
    register = await controller.expect(wire.WorkerRegister, count=2)
    assert register.attempts == ((job.job, 1),)
    controller.receives = True
    assert await controller.expect(wire.JobCompleted, job.job, count=2) == first
    await controller.sockets[-1].close()
    assert (await controller.expect(wire.WorkerRegister, count=3)).attempts == ()


async def test_dialling_again_slows_down_and_is_left_to_chance() -> None:
    """A controller that comes back is not called by all of its workers in the same moment."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    asked: list[float] = []
    enough = asyncio.Event()

    def pause(wait_s: float) -> float:
        asked.append(wait_s)
        if len(asked) == 9:
            enough.set()
        return 0.0

    address = ControllerAddress(url=url, credential="c", worker_id="w")
    nobody = cast(Agent, None)  # it is not asked before somebody answers
    dialling = asyncio.create_task(
        AgentConnection(lambda: address, nobody, gives_up=False, pause=pause).run()
    )
    async with asyncio.timeout(20):
        await enough.wait()
    dialling.cancel()
    assert asked[:9] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    chances = {jittered(1.0) for _ in range(20)}
    assert len(chances) > 10
    assert all(0.5 <= one <= 1.0 for one in chances)


async def test_a_controller_that_reads_nothing_but_says_something_is_there() -> None:
    unread: asyncio.Queue[ServerConnection] = asyncio.Queue()

    async def reads_nothing(line: ServerConnection) -> None:
        line.transport.pause_reading()
        unread.put_nowait(line)
        await line.wait_closed()

    async with (
        serve(reads_nothing, "127.0.0.1", 0, ping_interval=None, close_timeout=0.1) as server,
        asyncio.timeout(30),
    ):
        port = next(iter(server.sockets)).getsockname()[1]
        line = await connect(
            f"ws://127.0.0.1:{port}",
            create_connection=AgentSocket,
            ping_interval=0.1,
            proxy=None,
        )
        there = await unread.get()
        for _ in range(50):
            await there.pong()
            await asyncio.sleep(0.01)
        assert line.state is State.OPEN, "though no ping was answered"
        await line.wait_closed()  # from now on nothing comes
        there.transport.abort()


def wordy() -> None:
    raise ValueError("x" * 60_000)


async def test_results_that_are_said_again_together_fit_into_frames(
    controller: FakeController, start: StartAgent
) -> None:
    await start()
    controller.receives = False
    jobs = [controller.job(wordy) for _ in range(70)]
    await controller.send(*jobs)
    said = [await controller.failed(job.job) for job in jobs]
    assert len(wire.encode(said)) > FRAME_BYTES
    await controller.sockets[-1].close()
    await controller.expect(wire.JobFailed, count=2 * len(jobs))
    assert len(controller.sockets) == 2, "and none of them was too large"


def test_one_message_fits_with_a_frame_before_it() -> None:
    assert LINE_LIMIT + MAX_FRAME_BYTES < FRAME_BYTES
    names = tuple(
        f"{number:08}" + "x" * (NAMES_BYTES // MOST_MODELS - 8) for number in range(MOST_MODELS)
    )
    models = tuple(Model(name, 1 << 40, "f" * 64) for name in names)
    assert kept(names) == MOST_MODELS
    register = wire.WorkerRegister(
        worker_id="w",
        software_version="1",
        runner_protocol="1",
        capabilities=Capabilities(cpus=1, memory_gb=1, models_present=names),
        supported_models=names,
        models=models,
        models_loaded=names,
        attempts=tuple((f"j-{number:024}", 1) for number in range(20_000)),
    )
    assert len(wire.encode([register])) < FRAME_BYTES


def busy(path: str) -> int:
    turns = 0
    while not os.path.exists(path):
        turns += sum(range(1000))
        print("x" * 200)
    return turns


async def test_heartbeats_go_on_beside_work_that_takes_everything(
    controller: FakeController, start: StartAgent, tmp_path: Path
) -> None:
    count = (os.cpu_count() or 1) + 1
    await start(**{"worker.read_paths": [str(tmp_path)], "worker.cpus": float(count)})
    jobs = [controller.job(busy, str(tmp_path / "go")) for _ in range(count)]
    await controller.send(*jobs)
    for job in jobs:
        await controller.expect(wire.JobStarted, job.job)
    before = sum(isinstance(one, wire.WorkerHeartbeat) for one in controller.heard)
    beat = await controller.expect(wire.WorkerHeartbeat, count=before + 5)
    assert beat.running == count
    (tmp_path / "go").touch()
    for job in jobs:
        await controller.completed(job.job)


async def test_a_controller_that_comes_back_elsewhere_is_found(
    controller: FakeController, start: StartAgent, tmp_path: Path
) -> None:
    await start(embedded=True)
    await controller.stop()
    controller.port = 0
    await controller.listen()
    controller.write_address(tmp_path)
    await controller.expect(wire.WorkerRegister, count=2)


async def test_a_drain_returns_what_waits_ends_what_runs_and_says_goodbye(
    controller: FakeController, start: StartAgent
) -> None:
    running = await start(embedded=True, **{"worker.cpus": 1.0})
    long, waiting = controller.job(patient), controller.job(patient)
    await controller.send(long, waiting)
    await controller.expect(wire.JobStarted, long.job)
    await controller.send(wire.Drain(0.2), controller.job(patient))
    await controller.expect(wire.WorkerGoodbye)
    kinds = [type(m) for m in controller.heard if getattr(m, "leaving", True)]
    assert kinds.index(wire.WorkerHeartbeat) < kinds.index(wire.JobReturned), "told before"
    assert (await controller.failed(long.job)).failure.code == "worker_stopping"
    returned = [m.job for m in controller.heard if isinstance(m, wire.JobReturned)]
    assert len(returned) == 2
    assert waiting.job in returned
    assert isinstance(controller.heard[-1], wire.WorkerGoodbye)
    assert await asyncio.wait_for(running, 10) == 0


async def test_a_drain_lets_what_runs_finish_within_its_grace(
    controller: FakeController, start: StartAgent, tmp_path: Path
) -> None:
    running = await start(embedded=True, **{"worker.read_paths": [str(tmp_path)]})
    job = controller.job(wait_for, str(tmp_path / "go"))
    await controller.send(job, wire.Drain(20.0))
    await controller.expect(wire.JobStarted, job.job)
    (tmp_path / "go").touch()
    assert await controller.value(job.job) == "seen"
    assert await asyncio.wait_for(running, 10) == 0


async def test_an_agent_that_is_not_embedded_stays_after_a_drain(
    controller: FakeController, start: StartAgent
) -> None:
    await start()
    await controller.send(wire.Drain(1.0))
    await controller.expect(wire.WorkerGoodbye)
    await controller.expect(wire.WorkerRegister, count=2)
    job = controller.job(os.getpid)
    await controller.expect(wire.WorkerHeartbeat, where=lambda _: len(controller.sockets) == 2)
    await controller.send(job)
    await controller.completed(job.job)


async def test_an_embedded_agent_leaves_when_its_controller_stays_away(
    controller: FakeController, start: StartAgent
) -> None:
    controller.grace_s = 0.5
    running = await start(embedded=True)
    await controller.send(controller.job(patient))
    await controller.expect(wire.JobStarted)
    await controller.stop()
    assert await asyncio.wait_for(running, 20) == 0


async def test_a_stop_that_comes_while_it_ends_begins_nothing(
    tmp_path: Path, controller: FakeController
) -> None:
    """As of a controller that says so by both ways: what began then was never waited for."""
    kit.give(tmp_path)
    agent = Agent(load(tmp_path, {"log_level": "error"}, environ={}), embedded=True)
    running = asyncio.create_task(agent.run())
    await controller.expect(wire.WorkerHeartbeat)
    await controller.send(wire.Drain(0.0))
    await agent._left.wait()
    agent.leave(600.0, reason="the worker was asked to stop", for_good=True)
    assert agent._leaving is None
    assert await asyncio.wait_for(running, 10) == 0


async def test_an_embedded_agent_stays_while_its_controller_lives_and_only_says_nothing(
    controller: FakeController, start: StartAgent, tmp_path: Path
) -> None:
    """Stopped, for one: whoever holds the home's lock is not dead."""
    controller.grace_s = 0.2
    running = await start(embedded=True)
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    assert lock_file(lock)
    job = controller.job(patient)
    await controller.send(job)
    await controller.expect(wire.JobStarted)
    await controller.stop()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(running), 10 * controller.grace_s)
    await controller.listen()
    again = await controller.expect(wire.WorkerRegister, count=2)
    assert again.attempts == ((job.job, 1),), "as if nothing had been"
    await controller.stop()
    os.close(lock)
    assert await asyncio.wait_for(running, 20) == 0, "and now it is dead"


async def test_another_agent_in_its_place_ends_this_one(
    controller: FakeController, start: StartAgent
) -> None:
    running = await start()
    await controller.sockets[-1].close(wire.CLOSE_REPLACED, "The same worker connected again.")
    assert await asyncio.wait_for(running, 10) == 75


async def test_a_newer_controller_may_say_more_than_the_agent_knows(
    controller: FakeController, start: StartAgent
) -> None:
    await start()
    job = controller.job(abs, -3)
    (said,) = json.loads(wire.encode([job]))
    said |= {"mood": {"good": True}, "needs": {**said["needs"], "moons": 1}}
    await controller.sockets[-1].send(msgspec.json.encode([said]))
    assert await controller.value(job.job) == 3
