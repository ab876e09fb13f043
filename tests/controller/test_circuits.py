"""A worker that fails everything is left alone, and comes back by itself."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from corral.controller.engines.blame import Blame
from corral.controller.why import explain
from corral.controller.world import World
from corral.core.events import AttemptPlaced
from corral.core.job import Failure, State
from corral.engines.engine import Attempt
from corral.scheduler.circuit import CLOSED, Breaker
from corral.scheduler.settle import Policy
from tests.controller.shell import Needs, Shell, shell, worker
from tests.eventually import eventually_async

DIED = Failure(code="process_died", message="its process was killed")


class Broken:
    """Kills whatever begins on the bad worker, as long as it is broken."""

    def __init__(self) -> None:
        self.corral: Shell | None = None
        self.broken = True
        self.killed = 0

    def __call__(self, attempt: Attempt) -> float:
        if attempt.worker == "bad" and self.broken:
            assert self.corral is not None
            self.killed += 1
            asyncio.get_running_loop().call_soon(
                self.corral.engine.fail, attempt.job, attempt.number, DIED
            )
            return 3600.0
        return 0.002


WORKERS = [
    worker("bad", cpus=2, weight=9.0),
    worker("good", cpus=1, ahead=0),
]
POLICY = Policy(max_losses=3, backoff_s=0.0)


async def test_one_bad_worker_does_not_eat_the_retries_of_a_hundred_jobs(tmp_path: Path) -> None:
    broken = Broken()
    breaker = Breaker(failures=3, cool_s=60.0)
    async with shell(tmp_path, WORKERS, broken, policy=POLICY, breaker=breaker) as corral:
        broken.corral = corral
        jobs = [await corral.submit(text=str(n)) for n in range(100)]
        for job in jobs:
            assert (await corral.until_ended(job)).state is State.SUCCEEDED
        assert broken.killed <= 3 + 4, "those that were there when it opened, and no more"


async def test_a_probe_closes_it_again(tmp_path: Path) -> None:
    broken = Broken()
    breaker = Breaker(failures=2, cool_s=0.1, cool_max_s=0.4)
    async with shell(tmp_path, WORKERS[:1], broken, policy=POLICY, breaker=breaker) as corral:
        broken.corral = corral
        jobs = [await corral.submit(text=str(n)) for n in range(4)]
        circuits = corral.store.world.circuits
        await eventually_async(lambda: circuits.get("bad", CLOSED).opened >= 2, "it opens again")
        waiting = next(job for job in jobs if corral.store.head(job).state is State.QUEUED)
        told = explain(corral.store, waiting, corral.loop.workers())
        assert "its circuit is" in told.workers["bad"]
        broken.broken = False
        for job in jobs:
            assert (await corral.until_ended(job)).state is State.SUCCEEDED
        assert not corral.store.world.circuits


def test_only_circuits_that_are_not_closed_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    breaker = Breaker(failures=3, window_s=60.0, cool_s=10.0)
    blame = Blame(cast(Any, SimpleNamespace(world=world)), breaker, lambda: None)

    def judge(failure: Failure | None, what: str, *, at: float) -> None:
        monkeypatch.setattr(time, "time", lambda: at)
        blame.judged.append(("w", failure, what))
        blame.conclude()

    opened = []
    for what in ("a", "b", "c", "d"):
        judge(DIED, what, at=1.0)
        opened.append(world.circuits["w"].opened)
    assert opened == [0, 0, 1, 1], "it opened once"
    judge(None, "e", at=50.0)
    assert not world.circuits


async def test_a_worker_that_is_lost_fails_once_whatever_it_held(tmp_path: Path) -> None:
    async with shell(tmp_path, [worker("w", cpus=8)], lambda _: 3600.0) as corral:
        jobs = [await corral.submit(text=str(n), needs=Needs()) for n in range(8)]
        for job in jobs:
            await corral.until(job, AttemptPlaced)
        corral.engine.lose("w")
        await eventually_async(lambda: not corral.store.world.held, "nothing is held")
        assert len(corral.store.world.circuits["w"].failed) == 1


async def test_a_restart_forgets_it(tmp_path: Path) -> None:
    """What was held against a worker is not journaled: a few attempts teach it again."""
    broken = Broken()
    async with shell(tmp_path, WORKERS[:1], broken, policy=POLICY) as corral:
        broken.corral = corral
        for n in range(3):
            await corral.submit(text=str(n))
        await eventually_async(lambda: "bad" in corral.store.world.circuits, "a circuit")
    broken.broken = False
    async with shell(tmp_path, WORKERS[:1], broken, policy=POLICY) as corral:
        broken.corral = corral
        assert not corral.store.world.circuits
        job = await corral.submit(text="x")
        assert (await corral.until_ended(job)).state is State.SUCCEEDED
