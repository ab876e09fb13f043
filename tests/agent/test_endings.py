"""How attempts end by force, and that nothing of them is left."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest

from corral.core.job import Needs
from corral.protocol import messages as wire
from tests.agent.conftest import BOTH_KINDS, StartAgent
from tests.agent.fake_controller import FakeController


@pytest.fixture(params=BOTH_KINDS)
def spawned(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def stubborn(ignored: tuple[int, ...], resists: bool = True) -> None:
    """Ignores signals and exceptions, and starts a daemon that has left its session."""
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            print(f"daemon {os.getpid()}", flush=True)
            time.sleep(600)
        os._exit(0)
    print(f"job {os.getpid()} runner {os.getppid()}", flush=True)
    while resists:
        try:
            time.sleep(600)
        except BaseException:
            print("still here", flush=True)
    time.sleep(600)


def patient() -> None:
    time.sleep(600)


async def pids(controller: FakeController, job: str) -> dict[str, int]:
    """The process ids that `stubborn` printed."""

    def said(_: wire.JobOutput) -> bool:
        return {"daemon", "job"} <= set(controller.output(job).split())

    await controller.expect(wire.JobOutput, job, said)
    words = controller.output(job).split()
    return {name: int(words[words.index(name) + 1]) for name in ("daemon", "job", "runner")}


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("ignored", [(), (signal.SIGTERM, signal.SIGINT)])
async def test_cancel_ends_the_whole_tree_also_what_ignores_signals(
    controller: FakeController, start: StartAgent, ignored: tuple[int, ...]
) -> None:
    await start()
    job = controller.job(stubborn, ignored)
    await controller.send(job)
    found = await pids(controller, job.job)
    await controller.send(wire.JobCancel(job.job, 1, 0.3))
    assert (await controller.failed(job.job)).failure.code == "cancelled"
    assert [name for name, pid in found.items() if not gone(pid)] == []


async def test_a_job_that_obeys_ends_before_its_grace(
    controller: FakeController, start: StartAgent
) -> None:
    await start()
    job = controller.job(patient)
    await controller.send(job)
    await controller.expect(wire.JobStarted, job.job)
    await controller.send(wire.JobCancel(job.job, 1, 600.0))
    assert (await controller.failed(job.job)).failure.code == "cancelled"


async def test_a_waiting_attempt_is_cancelled_at_once(
    controller: FakeController, start: StartAgent
) -> None:
    await start(**{"worker.cpus": 1.0})
    running, waiting = controller.job(patient), controller.job(patient)
    await controller.send(running, waiting, wire.JobCancel(waiting.job, 1))
    assert (await controller.failed(waiting.job)).failure.code == "cancelled"
    await controller.expect(wire.JobStarted, running.job)


async def test_over_its_duration_an_attempt_is_ended_with_its_tree(
    controller: FakeController, start: StartAgent
) -> None:
    await start()
    job = controller.job(stubborn, (), False, duration_s=1.0)
    await controller.send(job)
    found = await pids(controller, job.job)
    failed = await controller.failed(job.job)
    assert failed.failure.code == "over_duration"
    assert failed.seconds >= 1.0
    assert [name for name, pid in found.items() if not gone(pid)] == []


async def test_more_time_counts_from_the_start_and_is_told_once(
    controller: FakeController, start: StartAgent
) -> None:
    await start()
    early = controller.job(time.sleep, 1.5, duration_s=1.0)
    await controller.send(early, wire.JobExtend(early.job, 1, 600.0))
    await controller.completed(early.job)
    running = controller.job(patient, duration_s=1800.0)
    await controller.send(running)
    await controller.expect(wire.JobStarted, running.job)
    longer = wire.JobExtend(running.job, 1, 7200.0)
    await controller.send(longer, longer)
    told = await controller.expect(wire.JobOutput, running.job)
    assert told.stream == "stderr"
    await controller.send(wire.JobExtend("nobody", 1, 7200.0), wire.JobCancel(running.job, 1, 5.0))
    assert (await controller.failed(running.job)).failure.code == "cancelled"
    said = "corral: this job was given more time: it is ended after 2.0 h, in 120.0 min.\n"
    assert controller.output(running.job) == said


async def test_memory_beyond_the_limit_is_out_of_memory(
    controller: FakeController, start: StartAgent
) -> None:
    await start()

    def grow() -> None:
        import mmap

        # Shared pages are no data of one process, so only the watch over the tree sees them.
        held = mmap.mmap(-1, 300 * 1024**2)
        for at in range(0, len(held), 4096):
            held[at] = 1
        time.sleep(600)

    job = controller.job(grow, needs=Needs(memory_gb=0.2))
    await controller.send(job)
    failure = (await controller.failed(job.job)).failure
    assert failure.code == "out_of_memory"
    assert "memory_gb" in failure.message


async def test_a_killed_runner_is_a_dead_process_and_leaves_nothing(
    controller: FakeController, start: StartAgent
) -> None:
    await start()
    job, after = controller.job(stubborn, ()), controller.job(os.getpid)
    await controller.send(job)
    found = await pids(controller, job.job)
    os.kill(found["runner"], signal.SIGKILL)
    failure = (await controller.failed(job.job)).failure
    assert failure.code == "process_died"
    assert "SIGKILL" in failure.message
    assert [name for name, pid in found.items() if not gone(pid)] == []
    await controller.send(after)
    await controller.completed(after.job)


async def test_a_job_process_that_exits_without_a_result(
    controller: FakeController, start: StartAgent
) -> None:
    await start()
    quiet, loud = controller.job(os._exit, 0), controller.job(os._exit, 7)
    await controller.send(quiet, loud)
    assert (await controller.failed(quiet.job)).failure.code == "no_result"
    failure = (await controller.failed(loud.job)).failure
    assert (failure.code, failure.exit_code) == ("exit_code", 7)


async def test_a_controller_that_reads_slowly_slows_the_job_and_loses_nothing(
    controller: FakeController, start: StartAgent
) -> None:
    await start()
    size = 8 * 1024 * 1024

    def flood(size: int) -> None:
        line = "x" * 1023 + "\n"
        for _ in range(size // len(line)):
            print(line, end="")

    job, other = controller.job(flood, size), controller.job(os.getpid)
    controller.slowness_s = 0.02
    await controller.send(job, other)
    await controller.completed(other.job)
    await controller.completed(job.job)
    assert len(controller.output(job.job)) == size
