"""The agent as a process of its own: its lock, its signals, its death."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from corral.protocol import messages as wire
from tests.agent.fake_controller import FakeController

Spawn = Callable[..., Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
async def spawn(tmp_path: Path) -> AsyncIterator[Spawn]:
    started: list[asyncio.subprocess.Process] = []

    async def agent(*, embedded: bool = True) -> asyncio.subprocess.Process:
        command = [sys.executable, "-m", "corral.agent.main", "--home", str(tmp_path)]
        command += ["--embedded"] if embedded else []
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        started.append(process)
        return process

    yield agent
    for process in started:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


def patient() -> None:
    print(os.getppid(), flush=True)
    time.sleep(600)


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    async with asyncio.timeout(20):
        _, said = await process.communicate()
    return process.returncode, said.decode()


async def test_one_agent_per_home(controller: FakeController, spawn: Spawn) -> None:
    await spawn()
    await controller.expect(wire.WorkerHeartbeat)
    code, said = await ended(await spawn())
    assert code == 75
    assert said.count("\n") == 1
    assert "Another agent already runs" in said


async def test_a_terminated_agent_ends_its_work_and_says_goodbye(
    controller: FakeController, spawn: Spawn, tmp_path: Path
) -> None:
    (tmp_path / "corral.yaml").write_text("shutdown_grace_s: 0.2\n")
    process = await spawn()
    await controller.expect(wire.WorkerHeartbeat)
    job = controller.job(patient)
    await controller.send(job)
    await controller.expect(wire.JobOutput, job.job)
    process.send_signal(signal.SIGTERM)
    assert (await controller.failed(job.job)).failure.code == "worker_stopping"
    await controller.expect(wire.WorkerGoodbye)
    code, _ = await ended(process)
    assert code == 0


async def test_a_signal_during_a_drain_ends_the_agent(
    controller: FakeController, spawn: Spawn, tmp_path: Path
) -> None:
    (tmp_path / "corral.yaml").write_text("worker:\n  cpus: 1\n")
    process = await spawn(embedded=False)
    await controller.expect(wire.WorkerHeartbeat)
    job = controller.job(patient)
    await controller.send(job)
    await controller.expect(wire.JobOutput, job.job)
    await controller.send(wire.Drain(60.0), late := controller.job(patient))
    await controller.expect(wire.JobReturned, late.job)
    process.send_signal(signal.SIGTERM)
    assert (await controller.failed(job.job)).failure.code == "worker_stopping"
    code, _ = await ended(process)
    assert code == 0


async def test_a_killed_agent_takes_its_runners_along_and_another_takes_over(
    controller: FakeController, spawn: Spawn
) -> None:
    process = await spawn()
    await controller.expect(wire.WorkerHeartbeat)
    job = controller.job(patient)
    await controller.send(job)
    await controller.expect(wire.JobOutput, job.job)
    runner = psutil.Process(int(controller.output(job.job)))
    process.send_signal(signal.SIGKILL)
    await asyncio.to_thread(psutil.wait_procs, [runner], 10)
    assert not runner.is_running()
    await spawn()
    register = await controller.expect(wire.WorkerRegister, count=2)
    assert register.attempts == ()


def hidden() -> None:
    """A daemon that carries no trace of where it came from."""
    daemon = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
    print(f"{os.getppid()} {os.getpid()} {daemon.pid}", flush=True)
    time.sleep(600)


async def test_an_agent_ends_what_a_killed_one_left_and_says_so(
    controller: FakeController, spawn: Spawn, tmp_path: Path
) -> None:
    process = await spawn()
    await controller.expect(wire.WorkerHeartbeat)
    job = controller.job(hidden)
    await controller.send(job)
    await controller.expect(wire.JobOutput, job.job)
    left = [psutil.Process(int(pid)) for pid in controller.output(job.job).split()]
    left[0].suspend()  # so that the runner cannot clean up by itself
    process.send_signal(signal.SIGKILL)
    await process.wait()
    assert all(one.is_running() for one in left)
    controller.write_address(tmp_path)
    again = await spawn()
    register = await controller.expect(wire.WorkerRegister, count=2)
    zombie = psutil.STATUS_ZOMBIE  # where nobody collects what lost its parent
    assert not [one for one in left if one.is_running() and one.status() != zombie]
    assert register.leftovers >= 3
    assert register.attempts == ()
    await controller.sockets[-1].close()
    assert (await controller.expect(wire.WorkerRegister, count=3)).leftovers == 0, "said once"
    again.terminate()
    assert "leftover_processes_ended" in (await ended(again))[1]


async def test_settings_that_are_wrong_end_it_with_one_sentence(
    spawn: Spawn, tmp_path: Path
) -> None:
    (tmp_path / "corral.yaml").write_text("worker: {cpus: many}\n")
    code, said = await ended(await spawn())
    assert code == 78
    assert "worker.cpus" in said
    assert said.count("\n") == 1


async def test_gpus_that_cannot_be_told_apart_end_it_too(spawn: Spawn, tmp_path: Path) -> None:
    (tmp_path / "corral.yaml").write_text(
        "worker: {gpus: [{name: A, vram_gb: 8, id: x}, {name: B, vram_gb: 8, id: x}]}\n"
    )
    code, said = await ended(await spawn())
    assert code == 78
    assert said.startswith("worker.gpus: two GPUs have the id 'x'")


async def test_its_log_reads_like_the_controllers(
    controller: FakeController, spawn: Spawn, tmp_path: Path
) -> None:
    (tmp_path / "corral.yaml").write_text("log_format: json\n")
    process = await spawn()
    await controller.expect(wire.WorkerHeartbeat)
    process.send_signal(signal.SIGTERM)
    _, said = await ended(process)
    lines = [json.loads(line) for line in said.splitlines()]
    assert {"controller_connected", "worker_leaving"} <= {line["event"] for line in lines}
    for line in lines:
        assert re.fullmatch("[a-z]+(_[a-z]+)*", line["event"])
        assert datetime.fromisoformat(line["timestamp"]).tzinfo is UTC  # machines compare lines


async def test_the_agent_stays_small(controller: FakeController, spawn: Spawn) -> None:
    program = "import sys, corral.agent.main; print(*sys.modules)"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    loaded = set(said.decode().split())
    assert loaded.isdisjoint({"fastapi", "grpc", "typer", "pydantic", "uvicorn", "numpy"})
