"""What every engine promises (decision 0004), tried on every engine. That each of these can fail is
shown by `test_contract_mutants.py`."""

from __future__ import annotations

import pytest

from corral.core.events import (
    AttemptBegan,
    AttemptExited,
    AttemptReturned,
    WorkerJoined,
    WorkerLost,
)
from tests.engines.conftest import LOSABLE, Lab
from tests.eventually import eventually_async


async def test_a_worker_joins_and_says_what_it_has(lab: Lab) -> None:
    (joined,) = await lab.until(WorkerJoined)
    assert isinstance(joined, WorkerJoined)
    worker = await lab.worker()
    assert (worker.id, worker.connected) == (joined.worker, True)
    assert worker.engine == lab.engine.name
    assert joined.capabilities.cpus == 2
    assert joined.attempts == ()


async def test_an_attempt_begins_and_exits_with_its_digest(lab: Lab) -> None:
    attempt = await lab.attempt()
    lab.engine.start(attempt)
    (exited,) = await lab.until(AttemptExited)
    assert isinstance(exited, AttemptExited)
    assert (exited.job, exited.attempt, exited.worker) == (attempt.job, 1, attempt.worker)
    assert exited.digest == attempt.digest
    assert exited.failure is None
    assert exited.result is not None
    kinds = [type(report) for report in lab.reports]
    assert kinds.index(AttemptBegan) < kinds.index(AttemptExited)


async def test_starting_twice_is_starting_once(lab: Lab) -> None:
    attempt, other = await lab.attempt(), await lab.attempt()
    lab.engine.start(attempt)
    lab.engine.start(attempt)
    lab.engine.start(other)
    exits = await lab.until(AttemptExited, 2)
    assert len(exits) == 2
    assert len(lab.seen(AttemptBegan)) == 2


async def test_stop_ends_a_running_attempt(lab: Lab) -> None:
    attempt = await lab.attempt(long=True)
    lab.engine.start(attempt)
    await lab.until(AttemptBegan)
    assert (attempt.job, 1) in await lab.engine.running()
    await lab.engine.stop(attempt.job, 1, grace_s=2.0)
    (exited,) = await lab.until(AttemptExited)
    assert isinstance(exited, AttemptExited)
    assert exited.failure is not None
    assert exited.failure.code == "cancelled"


async def test_stop_of_an_unknown_attempt_does_nothing(lab: Lab) -> None:
    await lab.engine.stop("nobody", 7, grace_s=0.1)
    attempt = await lab.attempt()
    lab.engine.start(attempt)
    await lab.until(AttemptExited)
    assert len(lab.seen(AttemptExited)) == 1


async def test_stop_of_what_has_ended_does_nothing(lab: Lab) -> None:
    attempt, other = await lab.attempt(), await lab.attempt()
    lab.engine.start(attempt)
    await lab.until(AttemptExited)
    for unbegun in (True, False):
        await lab.engine.stop(attempt.job, 1, grace_s=0.1, unbegun=unbegun)
    lab.engine.start(other)
    await lab.until(AttemptExited, 2)
    assert not lab.seen(AttemptReturned)


async def test_an_end_is_the_engines_to_answer_for_until_it_is_on_disk(lab: Lab) -> None:
    """A controller that is killed meanwhile asks the next one's engine, and hears of it again."""
    attempt = await lab.attempt()
    key = (attempt.job, 1)
    lab.on_disk.clear()
    lab.engine.start(attempt)
    await lab.until(AttemptExited)
    assert key in await lab.engine.running()
    lab.on_disk.set()

    async def is_forgotten() -> bool:
        return key not in await lab.engine.running()

    await eventually_async(is_forgotten, "it is forgotten once it is on disk", lab.patience_s)


async def test_every_report_carries_the_number_of_its_attempt(lab: Lab) -> None:
    """It is the only fence: two attempts of one job are two."""
    first = await lab.attempt(long=True)
    second = await lab.attempt(after=first)
    lab.engine.start(first)
    await lab.until(AttemptBegan)
    lab.engine.start(second)
    (exited,) = await lab.until(AttemptExited)
    assert isinstance(exited, AttemptExited)
    assert (exited.job, exited.attempt, exited.failure) == (first.job, 2, None)
    assert (first.job, 1) in await lab.engine.running()
    await lab.engine.stop(first.job, 1, grace_s=2.0)
    exits = await lab.until(AttemptExited, 2)
    assert [one.attempt for one in exits if isinstance(one, AttemptExited)] == [2, 1]


async def test_what_does_not_fit_waits_for_room(lab: Lab) -> None:
    first, second = await lab.attempt(long=True, cpus=2.0), await lab.attempt(cpus=2.0)
    lab.engine.start(first)
    await lab.until(AttemptBegan)
    lab.engine.start(second)
    assert (second.job, 1) in await lab.engine.running()
    await lab.engine.stop(first.job, 1, grace_s=2.0)
    exits = await lab.until(AttemptExited, 2)
    assert [exited.job for exited in exits if isinstance(exited, AttemptExited)] == [
        first.job,
        second.job,
    ]
    began = next(
        one for one in lab.reports if isinstance(one, AttemptBegan) and one.job != first.job
    )
    assert lab.reports.index(exits[0]) < lab.reports.index(began)


async def test_stop_of_a_waiting_attempt_ends_it_without_running(lab: Lab) -> None:
    first, second = await lab.attempt(long=True, cpus=2.0), await lab.attempt(cpus=2.0)
    lab.engine.start(first)
    await lab.until(AttemptBegan)
    lab.engine.start(second)
    await lab.engine.stop(second.job, 1, grace_s=1.0)
    (exited,) = await lab.until(AttemptExited)
    assert isinstance(exited, AttemptExited)
    assert exited.job == second.job
    assert len(lab.seen(AttemptBegan)) == 1


async def test_asked_back_a_waiting_attempt_returns_and_a_running_one_stays(lab: Lab) -> None:
    first, second = await lab.attempt(long=True, cpus=2.0), await lab.attempt(cpus=2.0)
    lab.engine.start(first)
    await lab.until(AttemptBegan)
    lab.engine.start(second)
    for attempt in (first, second):
        await lab.engine.stop(attempt.job, 1, grace_s=0.0, unbegun=True)
    (returned,) = await lab.until(AttemptReturned)
    assert isinstance(returned, AttemptReturned)
    assert (returned.job, returned.attempt) == (second.job, 1)
    assert (first.job, 1) in await lab.engine.running()
    assert not lab.seen(AttemptExited)


@pytest.mark.parametrize("lab", LOSABLE, indirect=True)
async def test_a_worker_that_is_gone_is_reported_with_nothing_left(lab: Lab) -> None:
    attempt = await lab.attempt(long=True)
    lab.engine.start(attempt)
    await lab.until(AttemptBegan)
    lab.lose_worker()
    (lost,) = await lab.until(WorkerLost)
    assert isinstance(lost, WorkerLost)
    assert lost.worker == attempt.worker
    assert lost.reason
    assert not await lab.engine.running()
    assert not (await lab.worker()).connected
