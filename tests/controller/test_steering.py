"""Moving to the front and pausing: what they change, and that both outlive a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.controller.why import explain
from corral.controller.world import World
from corral.core.errors import Conflict, HomeUnusable
from corral.core.events import AttemptPlaced
from corral.core.job import Course, Head, JobId, Shape, State
from tests.controller.shell import Needs, QueueClass, Shell, records_of, shell, worker

ONE_GPU = Needs(gpus=1)


async def placed_in_order(corral: Shell, jobs: list[JobId]) -> list[JobId]:
    for job in jobs:
        await corral.until_ended(job)

    def placed(job: JobId) -> int:
        records = records_of(corral.store, job)
        return next(one.seq for one in records if isinstance(one.fact(), AttemptPlaced))

    return sorted(jobs, key=placed)


async def test_the_last_one_moved_is_the_first_also_after_a_restart(tmp_path: Path) -> None:
    async with shell(tmp_path, []) as corral:
        jobs = [await corral.submit(text=str(n), needs=ONE_GPU) for n in range(6)]
        other = await corral.submit(text="x", needs=Needs(gpus=1, vram_gb=1))
        urgent = await corral.submit(text="y", needs=ONE_GPU, priority=5)
        await corral.queue.to_front(jobs[4])
        await corral.queue.to_front(jobs[2])
        await corral.queue.to_front(other)
        wanted = [urgent, other, jobs[2], jobs[4], jobs[0], jobs[1], jobs[3], jobs[5]]
        reason = explain(corral.store, jobs[2], [])
        assert "moved to the front" in reason.history[-1]
    async with shell(tmp_path, [worker(gpus=1)]) as corral:
        assert await placed_in_order(corral, [*jobs, other, urgent]) == wanted


async def test_classes_still_come_first(tmp_path: Path) -> None:
    async with shell(tmp_path, []) as corral:
        quick = await corral.submit(
            text="q", needs=ONE_GPU, queue_class=QueueClass.INTERACTIVE, wait=True
        )
        slow = [await corral.submit(text=str(n), needs=ONE_GPU) for n in range(2)]
        await corral.queue.to_front(slow[1])
    async with shell(tmp_path, [worker(gpus=1)]) as corral:
        assert await placed_in_order(corral, [quick, *slow]) == [quick, slow[1], slow[0]]


async def test_only_a_waiting_job_is_moved(tmp_path: Path) -> None:
    async with shell(tmp_path) as corral:
        job = await corral.submit()
        await corral.until_ended(job)
        with pytest.raises(Conflict, match="only a waiting job"):
            await corral.queue.to_front(job)


async def test_a_pause_holds_new_work_back_also_after_a_restart(tmp_path: Path) -> None:
    async with shell(tmp_path) as corral:
        await corral.loop.hold(True, by="ann")
        job = await corral.submit()
        await corral.loop.turn()
        assert corral.store.head(job).state is State.QUEUED
        told = explain(corral.store, job, [worker()], paused=corral.loop.why_paused())
        assert "paused since" in told.summary
        assert "by ann" in told.summary
    async with shell(tmp_path) as corral:
        assert corral.loop.pause.active
        await corral.loop.turn()
        assert corral.store.head(job).state is State.QUEUED
        await corral.loop.hold(False, by="ann")
        await corral.until_ended(job)
    async with shell(tmp_path) as corral:
        assert not corral.loop.pause.active


async def test_a_torn_word_about_the_pause_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "queue.json").write_text("{")
    with pytest.raises(HomeUnusable, match="nothing clear"):
        async with shell(tmp_path):
            pass


def test_a_clock_that_was_put_back_delays_no_retry() -> None:
    now, longest_s = 1_000_000.0, 60.0
    world = World()
    waits, late = (
        Head(name, Shape(Needs()), State.QUEUED, now, n, n, course=Course(not_before=now + seconds))
        for n, (name, seconds) in enumerate([("waits", 30.0), ("late", 3630.0)], 1)
    )
    world.apply(waits)
    assert world.wake_due(now, longest_s) == now + 30.0
    world.apply(late)
    world.wake_due(now + 31.0, longest_s)
    lined_up = [one.id for line in world.lines.values() for one in line]
    assert lined_up == ["waits", "late"], "an hour is more than any retry waits"
