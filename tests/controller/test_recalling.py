"""What was sent ahead comes back when another worker falls idle first."""

from __future__ import annotations

from pathlib import Path

from corral.core.events import AttemptPlaced
from corral.core.job import State
from corral.engines.engine import Attempt
from tests.controller.shell import shell, worker


def seconds(attempt: Attempt) -> float:
    return 3600.0 if b"bG9uZw" in bytes(attempt.document) else 0.01  # "long", as it stands there


async def test_a_short_queue_behind_a_long_job_moves_to_the_idle_worker(tmp_path: Path) -> None:
    both = [worker("a", cpus=1, gpus=0), worker("b", cpus=1, gpus=0)]
    async with shell(tmp_path, both, seconds) as corral:
        corral.engine.lose("b")
        long = await corral.submit(text="long")
        short = await corral.submit(text="short")
        await corral.until(short, AttemptPlaced)
        assert corral.store.head(short).worker == "a"
        corral.engine.restore("b")
        ended = await corral.until_ended(short)
        assert (ended.state, ended.worker, ended.course.losses) == (State.SUCCEEDED, "b", 0)
        assert corral.store.head(long).worker == "a"
        assert corral.store.head(long).attempt == 1


async def test_nothing_is_asked_back_while_the_queue_is_paused(tmp_path: Path) -> None:
    both = [worker("a", cpus=1, gpus=0), worker("b", cpus=1, gpus=0)]
    async with shell(tmp_path, both, seconds) as corral:
        corral.engine.lose("b")
        await corral.submit(text="long")
        behind = await corral.submit(text="x")
        await corral.until(behind, AttemptPlaced)
        await corral.loop.hold(True, by="ann")
        corral.engine.restore("b")
        for _ in range(3):
            assert await corral.recalling.look() == 0
        assert corral.store.head(behind).state is State.PLACED
