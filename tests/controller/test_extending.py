"""More time for a job: journaled, told to whoever runs it, and kept for what follows."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from corral.controller.why import explain
from corral.core.errors import Conflict, InvalidJob
from corral.core.events import AttemptStarted, WorkerJoined
from corral.core.job import Failure, JobId, State, decode_document
from corral.engines.engine import Attempt
from corral.engines.simulated import SimulatedEngine
from tests.controller.shell import Shell, shell, worker
from tests.eventually import eventually_async

FOREVER = 3600.0
HOUR_S = 3600.0


class Told(SimulatedEngine):
    """Its workers can be told; it notes how long attempts may run, by what it was told last."""

    name = "told"

    def __init__(self) -> None:
        super().__init__([worker(extends=True)], lambda _: FOREVER)
        self.durations: dict[tuple[JobId, int], float] = {}

    def start(self, attempt: Attempt) -> None:
        self.durations[attempt.job, attempt.number] = attempt.duration_s
        super().start(attempt)

    def extend(self, job: JobId, attempt: int, duration_s: float) -> None:
        self.durations[job, attempt] = duration_s


async def running(corral: Shell) -> JobId:
    job = await corral.submit(duration_s=HOUR_S, retries=1)
    await corral.until(job, AttemptStarted)
    return job


async def test_what_runs_is_told_and_what_follows_has_it_too(tmp_path: Path) -> None:
    engine = Told()
    async with shell(tmp_path, [], beside=[engine]) as corral:
        job = await running(corral)
        assert (await corral.queue.extend(job, HOUR_S)).duration_s == 2 * HOUR_S
        head = await corral.queue.extend(job, 60)
        assert (head.state, engine.durations[job, 1]) == (State.RUNNING, 2 * HOUR_S + 60)
        assert "given 60 s more" in explain(corral.store, job, []).history[-1]
        assert "attempt 1 placed on" in explain(corral.store, job, []).summary
        engine.fail(job, 1, Failure(code="exception", message="it broke"))
        await eventually_async(lambda: (job, 2) in engine.durations, "the next attempt")
        assert engine.durations[job, 2] == 2 * HOUR_S + 60


async def test_it_outlives_a_restart_and_a_worker_that_was_away_hears_of_it(tmp_path: Path) -> None:
    engine = Told()
    async with shell(tmp_path, [], beside=[engine]) as corral:
        job = await running(corral)
        await corral.queue.extend(job, HOUR_S)
    async with shell(tmp_path, [], beside=[engine]) as corral:
        assert corral.store.head(job).duration_s == 2 * HOUR_S
        engine.durations[job, 1] = HOUR_S  # as if it had never been told
        (here,) = engine.workers()
        back = WorkerJoined(here.id, here.name, here.capabilities, ((job, 1),))
        await corral.intakes[1].take([back])
        assert engine.durations[job, 1] == 2 * HOUR_S


async def test_a_job_that_waits_begins_with_it_and_a_retry_has_it(tmp_path: Path) -> None:
    async with shell(tmp_path, []) as corral:
        job = await corral.submit(duration_s=HOUR_S)
        await corral.queue.extend(job, HOUR_S)
        await corral.queue.cancel(job)
        again = await corral.queue.retry(job)
        document = corral.store.journal.document(corral.store.head(again).submitted_seq)
        assert decode_document(document).duration_s == 2 * HOUR_S


async def test_what_cannot_be_extended(tmp_path: Path) -> None:
    async with shell(tmp_path, seconds=lambda _: FOREVER) as corral:
        job = await running(corral)
        with pytest.raises(Conflict, match=r"Worker w1 cannot be told .* its Corral is older"):
            await corral.queue.extend(job, HOUR_S)
        corral.engine.fail(job, 1, Failure(code="bad_package", message="it broke"))
        await corral.until_ended(job)
        with pytest.raises(Conflict, match=f"already failed; `corral retry {job} --duration"):
            await corral.queue.extend(job, HOUR_S)


@pytest.mark.parametrize("by_s", [0.0, -5.0, math.nan, math.inf])
async def test_no_time_is_no_more_time(tmp_path: Path, by_s: float) -> None:
    async with shell(tmp_path, []) as corral:
        job = await corral.submit()
        with pytest.raises(InvalidJob, match="a second or more"):
            await corral.queue.extend(job, by_s)


async def test_no_job_runs_longer_than_jobs_may(tmp_path: Path) -> None:
    async with shell(tmp_path, []) as corral:
        job = await corral.submit()
        with pytest.raises(InvalidJob, match=r"at most 7.0 d, and this one has 60.0 min"):
            await corral.queue.extend(job, 7 * 24 * HOUR_S)
