"""Each promise of an engine is broken once, and the contract notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

import pytest

from corral.core.events import AttemptReturned, EngineReport
from corral.core.job import Failure, JobId
from corral.core.worker import Capabilities, Worker
from corral.engines.engine import Attempt
from corral.engines.simulated import SimulatedEngine
from tests.engines import test_contract as contract
from tests.engines.conftest import LONG_S, Lab, SimulatedLab, is_long

Promise = Callable[[Lab], Awaitable[None]]


class StartsTwice(SimulatedEngine):
    """Point 1: a second start is another one."""

    def start(self, attempt: Attempt) -> None:
        self._waiting.append(attempt)
        self._begin()


class TellsNothingOfItsWorkers(SimulatedEngine):
    """Point 4: nobody hears who is there."""

    def open(self, holding: Collection[str] = ()) -> None:
        pass


class StopFailsOnStrangers(SimulatedEngine):
    """Point 2: what it does not have it cannot stop."""

    async def stop(
        self, job: JobId, attempt: int, *, grace_s: float, unbegun: bool = False
    ) -> None:
        if (job, attempt) not in await self.running():
            raise KeyError(job)
        await super().stop(job, attempt, grace_s=grace_s, unbegun=unbegun)


class ReturnsWhatEnded(SimulatedEngine):
    """Points 2 and 5: it promises that something never ran which did."""

    async def stop(
        self, job: JobId, attempt: int, *, grace_s: float, unbegun: bool = False
    ) -> None:
        if unbegun and (job, attempt) not in await self.running():
            self._report(AttemptReturned(job, attempt, "w", "recalled"))
        await super().stop(job, attempt, grace_s=grace_s, unbegun=unbegun)


class ReturnsWhatRuns(SimulatedEngine):
    """Point 5: what has begun is given back as if it had not."""

    async def stop(
        self, job: JobId, attempt: int, *, grace_s: float, unbegun: bool = False
    ) -> None:
        if unbegun and (job, attempt) in self._running:
            self._report(AttemptReturned(job, attempt, "w", "recalled"))
        await super().stop(job, attempt, grace_s=grace_s, unbegun=unbegun)


class StopDoesNothing(SimulatedEngine):
    """Point 2: a request without a proof that follows."""

    async def stop(
        self, job: JobId, attempt: int, *, grace_s: float, unbegun: bool = False
    ) -> None:
        pass


class ForgetsWhatEnded(SimulatedEngine):
    """Point 3: what ended and is not on disk yet is nobody's."""

    async def running(self) -> Collection[tuple[JobId, int]]:
        return [key for key in await super().running() if key not in self._unheard]


class NeverForgets(SimulatedEngine):
    """Point 4: that an end is on disk means nothing to it."""

    async def events(self) -> AsyncIterator[Sequence[EngineReport]]:
        async for batch in super().events():
            before = set(self._unheard)
            yield batch
            self._unheard |= before
            asyncio.get_running_loop().call_soon(self._unheard.update, before)


class TakesOneAttemptOfAJob(SimulatedEngine):
    """Point 6: it knows jobs, and no attempts."""

    def start(self, attempt: Attempt) -> None:
        if not any(job == attempt.job for job, _ in self._running):
            super().start(attempt)


class RunsWhatDoesNotFit(SimulatedEngine):
    """Point 7: it has room for everything."""

    def start(self, attempt: Attempt) -> None:
        for capacity in self._capacity.values():
            capacity.cpus = 100.0
        super().start(attempt)


class LosesInSilence(SimulatedEngine):
    """Point 4: a worker is gone, and nobody says so."""

    def lose(self, worker: str, reason: str = "power cut") -> None:
        self._running.clear()


class FailsWithoutAWord(SimulatedEngine):
    """What ended by force looks as if it had ended well."""

    def fail(self, job: JobId, attempt: int, failure: Failure) -> None:
        found = self._running.get((job, attempt))
        if found is not None:
            self._succeed(found[0], 0.0)


BROKEN: list[tuple[type[SimulatedEngine], Promise]] = [
    (TellsNothingOfItsWorkers, contract.test_a_worker_joins_and_says_what_it_has),
    (StartsTwice, contract.test_starting_twice_is_starting_once),
    (StopDoesNothing, contract.test_stop_ends_a_running_attempt),
    (FailsWithoutAWord, contract.test_stop_ends_a_running_attempt),
    (StopFailsOnStrangers, contract.test_stop_of_an_unknown_attempt_does_nothing),
    (StopFailsOnStrangers, contract.test_stop_of_what_has_ended_does_nothing),
    (ReturnsWhatEnded, contract.test_stop_of_what_has_ended_does_nothing),
    (ForgetsWhatEnded, contract.test_an_end_is_the_engines_to_answer_for_until_it_is_on_disk),
    (NeverForgets, contract.test_an_end_is_the_engines_to_answer_for_until_it_is_on_disk),
    (
        ReturnsWhatRuns,
        contract.test_asked_back_a_waiting_attempt_returns_and_a_running_one_stays,
    ),
    (TakesOneAttemptOfAJob, contract.test_every_report_carries_the_number_of_its_attempt),
    (RunsWhatDoesNotFit, contract.test_what_does_not_fit_waits_for_room),
    (StopDoesNothing, contract.test_stop_of_a_waiting_attempt_ends_it_without_running),
    (LosesInSilence, contract.test_a_worker_that_is_gone_is_reported_with_nothing_left),
]


@pytest.mark.parametrize(
    ("broken", "promise"),
    [pytest.param(*one, id=f"{one[0].__name__}-{one[1].__name__}") for one in BROKEN],
)
async def test_a_broken_promise_is_noticed(broken: type[SimulatedEngine], promise: Promise) -> None:
    can = Capabilities(cpus=2.0, memory_gb=4.0, workloads=("python",))
    there = Worker(id="w", name="w", engine="simulated", capabilities=can)
    engine = broken([there], lambda attempt: LONG_S if is_long(attempt) else 0.0)
    engine.open()
    lab = SimulatedLab(engine)
    lab.patience_s = 0.5
    reading = asyncio.create_task(lab.read())
    try:
        with pytest.raises((AssertionError, KeyError, TimeoutError, ValueError)):
            await promise(lab)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
