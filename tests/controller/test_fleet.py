"""A machine that two engines reach: one worker, one capacity, and each attempt with its engine."""

from __future__ import annotations

from pathlib import Path

from corral.core.job import Needs, State
from corral.engines.simulated import SimulatedEngine
from tests.controller.shell import Shell, shell, worker
from tests.eventually import eventually_async

FOREVER = 1000.0


class Other(SimulatedEngine):
    name = "other"


def other(*workloads: str) -> Other:
    there = worker(cpus=2, ahead=0, workloads=workloads or ("python",))
    return Other([there], lambda _: FOREVER)


async def _running(corral: Shell, count: int) -> None:
    heads = corral.store.world.heads
    await eventually_async(
        lambda: sum(head.state is State.RUNNING for head in heads.values()) == count,
        f"{count} running",
    )


async def test_two_engines_share_what_one_machine_has(tmp_path: Path) -> None:
    first = [worker(cpus=2, ahead=0, workloads=("pipeline",))]
    async with shell(tmp_path, first, lambda _: FOREVER, beside=[other("python")]) as corral:
        (one,) = corral.loop.workers()
        assert set(one.capabilities.workloads) == {"pipeline", "python"}
        jobs = [await corral.submit(needs=Needs(cpus=1)) for _ in range(4)]
        await _running(corral, 2)
        assert [corral.store.head(job).engine for job in jobs] == ["other", "other", "", ""]
        assert [engine.most_running for engine in corral.engines] == [0, 2]


async def test_the_engine_that_is_named_first_runs_what_both_can(tmp_path: Path) -> None:
    beside = other()
    first = [worker(cpus=2, ahead=0)]
    async with shell(tmp_path, first, lambda _: FOREVER, beside=[beside]) as corral:
        job = await corral.submit()
        await _running(corral, 1)
        assert corral.store.head(job).engine == "simulated"
        corral.engine.lose("w1")
        await eventually_async(lambda: corral.store.head(job).engine == "other", "the other one")
        assert corral.store.head(job).attempt == 2, "it is still reached by the other one"


async def test_an_engine_that_lacks_what_a_job_needs_is_passed_over(tmp_path: Path) -> None:
    first = [worker(cpus=2, gpus=0, ahead=0)]
    async with shell(tmp_path, first, lambda _: FOREVER, beside=[other()]) as corral:
        plain, on_gpu = await corral.submit(), await corral.submit(needs=Needs(gpus=1))
        await _running(corral, 2)
        engines = [corral.store.head(job).engine for job in (plain, on_gpu)]
        assert engines == ["simulated", "other"]


async def test_nothing_waits_at_one_engine_for_what_the_other_holds(tmp_path: Path) -> None:
    """It would start at once: an engine knows nothing of what the other one has there."""
    first = [worker(cpus=2, ahead=100, workloads=("pipeline", "python"))]
    beside = other()
    async with shell(tmp_path, first, lambda _: FOREVER, beside=[beside]) as corral:
        corral.engine.lose("w1")
        jobs = [await corral.submit(needs=Needs(cpus=1)) for _ in range(2)]
        await _running(corral, 2)
        corral.engine.restore("w1")
        corral.engine.changed()
        jobs += [await corral.submit(needs=Needs(cpus=1)) for _ in range(2)]
        await corral.loop.turn()
        assert [corral.store.head(job).engine for job in jobs] == ["other", "other", "", ""]


async def test_what_one_engine_says_of_a_machine_ends_nothing_of_the_other(tmp_path: Path) -> None:
    beside = other()
    first = [worker(cpus=2, ahead=0, workloads=("pipeline",))]
    async with shell(tmp_path, first, lambda _: FOREVER, beside=[beside]) as corral:
        job = await corral.submit()
        await _running(corral, 1)
        corral.engine.lose("w1")
        corral.engine.restore("w1")
        corral.engine.changed()
        again = await corral.submit()
        await _running(corral, 2)
        assert [corral.store.head(one).attempt for one in (job, again)] == [1, 1]
        await corral.queue.cancel(job)
        assert (await corral.until_ended(job)).state is State.CANCELLED
        beside.lose("w1")
        await eventually_async(lambda: not corral.store.world.held, "nothing is held")


async def test_workers_of_every_engine_are_known_again(tmp_path: Path) -> None:
    async with shell(tmp_path, beside=[other()]) as corral:
        await corral.until_ended(await corral.submit())
    async with shell(tmp_path) as corral:
        known = {(one.engine, one.id) for one in corral.journal.workers()}
        assert known == {("simulated", "w1"), ("other", "w1")}
