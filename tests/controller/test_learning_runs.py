"""A learning run is one batch, and one result with its steps in their order."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from corral.controller.files.blobs import Blobs
from corral.controller.images.learning import LearningFilters, Learnings
from corral.controller.images.learning_runs import LearningRuns, StartedRun
from corral.controller.images.plans import Plans
from corral.controller.images.presets import PresetFiles
from corral.core.access import Caller, Role
from corral.core.errors import Conflict, InvalidPlan, LearningRunNotFound
from corral.core.events import AttemptStarted
from corral.core.images.learning_run import LearningRunResult, Step
from corral.core.images.pipeline import Record
from corral.core.job import Failure, PipelineCall, State, decode_document
from corral.engines.engine import Attempt
from corral.pipelines.learning_plans import batch_plan, parse
from tests.controller.paintings import result_of
from tests.controller.shell import Shell, shell, worker
from tests.crash import books
from tests.eventually import eventually_async

ANN = Caller("ann", Role.SUBMIT)
PLAN: dict[str, Any] = {
    "name": "cfg-1",
    "variable": "txt2img.cfg_scale",
    "values": [5, 7.5, 10],
    "images": 2,
    "seed": 40,
    "prompt": {"positive": "a castle, rain", "negative": "blurry"},
    "base": {"txt2img": {"model": "sketch", "width": 64, "height": 64}},
}


def record_of(attempt: Attempt) -> Record:
    work = decode_document(attempt.document).work
    assert isinstance(work, PipelineCall)
    return work.record


class Ranch:
    """A controller in memory that learns."""

    def __init__(self, made: Shell, home: Path) -> None:
        self.made = made
        made.engine.answer = lambda attempt: result_of(attempt.job, record_of(attempt))
        self.learnings = Learnings(made.store, Blobs(home / "blobs"), home / "learning")
        plans = Plans(made.queue, made.loop, self.learnings.paces, PresetFiles(home / "presets"))
        folder = home / "learning" / "runs"
        self.runs = LearningRuns(plans, self.learnings, made.store, folder)

    async def start(self, **changes: Any) -> StartedRun:
        return await self.runs.start(json.dumps({**PLAN, **changes}).encode(), ANN)

    async def complete(self, name: str = "cfg-1") -> LearningRunResult:
        """Its result, once it is written down."""
        path = self.learnings.records.path.with_name("runs") / name / "result.json"
        await eventually_async(path.exists, f"{path.name} is written")
        return (await self.runs.show(name)).result

    async def step(self, number: int) -> Step:
        return (await self.runs.show("cfg-1")).result.steps[number]


@contextlib.asynccontextmanager
async def ranch(
    home: Path, seconds: Callable[[Attempt], float] = lambda _: 0.0
) -> AsyncIterator[Ranch]:
    workers = [
        worker(f"w{n}", workloads=("pipeline",), task_types=("sketch", "render")) for n in range(3)
    ]
    async with shell(home, workers, seconds) as made:
        one = Ranch(made, home)
        tasks = [asyncio.create_task(part.run()) for part in (one.learnings, one.runs)]
        try:
            yield one
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends
            one.learnings.close()


def slower_first(attempt: Attempt) -> float:
    """The last step ends first."""
    return 0.05 * (3 - record_of(attempt).learning.step)


async def test_of_two_plans_with_one_name_at_once_the_second_is_told(tmp_path: Path) -> None:
    async with ranch(tmp_path) as found:
        both = await asyncio.gather(
            found.start(), found.start(values=[1, 2]), return_exceptions=True
        )
        assert [isinstance(one, Conflict) for one in both] == [False, True]
        assert [run.jobs for run in found.runs.all()] == [6]


async def test_steps_are_in_their_order_whatever_ends_first(tmp_path: Path) -> None:
    async with ranch(tmp_path, slower_first) as one:
        started = await one.start()
        assert (started.run.jobs, started.result.complete) == (6, False)
        result = await one.complete()
        chunks = [chunk async for chunk in one.learnings.exported()]
        lines = [json.loads(line) for line in b"".join(chunks).splitlines()]
        ended = [line["learning"]["step"] for line in lines]
    assert ended != sorted(ended), "they did end in another order"
    assert [(step.step, step.value) for step in result.steps] == [(0, 5), (1, 7.5), (2, 10)]
    assert (result.complete, result.ended, result.planned) == (True, 6, 6)
    assert result.ended_at > result.started_at
    for step in result.steps:
        assert [job.number for job in step.jobs] == [0, 1]
        assert [job.seeds for job in step.jobs] == [(40,), (41,)], "the same for each value"
        assert (step.succeeded, step.failed, step.images) == (2, 0, 2)
        assert step.mean_stage_seconds == 1.5
        assert step.mean_seconds == pytest.approx(0.05 * (3 - step.step))
        assert step.mean_rating is None
    assert len({job.worker for step in result.steps for job in step.jobs}) > 1


async def test_each_job_differs_in_the_variable_alone(tmp_path: Path) -> None:
    async with ranch(tmp_path) as one:
        await one.start()
        await one.complete()
        chunks = [chunk async for chunk in one.learnings.exported(LearningFilters(plan="cfg-1"))]
    records = [json.loads(line)["record"] for line in b"".join(chunks).splitlines()]
    assert sorted(record["cfg_scale"] for record in records) == [5, 5, 7.5, 7.5, 10, 10]
    own = ("cfg_scale", "config_index", "batch_index", "seed", "job_id", "learning")
    alike = {json.dumps({k: v for k, v in record.items() if k not in own}) for record in records}
    assert len(alike) == 1
    assert {record["learning"]["plan"] for record in records} == {"cfg-1"}


async def test_the_same_plan_is_the_same_run(tmp_path: Path) -> None:
    async with ranch(tmp_path) as one:
        first = await one.start()
        again = await one.start()
        assert again.run == first.run
        result = await one.complete()
        with pytest.raises(Conflict, match="another plan"):
            await one.start(images=3)
        await one.start(name="cfg-2")
        await one.complete("cfg-2")
        assert [run.name for run in one.runs.all()] == ["cfg-1", "cfg-2"]
        with pytest.raises(LearningRunNotFound, match="--list"):
            await one.runs.show("cfg-3")
        with pytest.raises(LearningRunNotFound):
            await one.runs.show("../cfg-1")
        assert len(books.history(one.made.store.journal)) == 12
    async with ranch(tmp_path) as one:
        assert (await one.start()).result == result, "also after a restart"


async def test_a_start_that_was_cut_off_is_gone_on_with(tmp_path: Path) -> None:
    """Its jobs are submitted and nobody wrote down what they are for."""
    async with ranch(tmp_path) as one:
        first = await one.start()
        await one.complete()
    for file in (tmp_path / "learning" / "runs" / "cfg-1").iterdir():
        file.unlink()
    async with ranch(tmp_path) as one:
        again = await one.start()
        assert again.run.batch == first.run.batch
        assert again.result.complete


async def test_a_result_that_nobody_wrote_down_follows_from_the_journal(tmp_path: Path) -> None:
    async with ranch(tmp_path) as one:
        await one.start()
        result = await one.complete()
    (tmp_path / "learning" / "runs" / "cfg-1" / "result.json").unlink()
    async with ranch(tmp_path) as one:
        assert await one.complete() == result


async def test_a_result_outlives_its_jobs(tmp_path: Path) -> None:
    async with ranch(tmp_path) as one:
        await one.start()
        result = await one.complete()
        jobs = [job.job_id for step in result.steps for job in step.jobs]
        await one.learnings.caught_up()
        await one.made.store.prune(jobs, 1.0)
        await one.learnings.rate(jobs[0], 5)
        await one.learnings.rate(jobs[1], 4)
        found = (await one.runs.show("cfg-1")).result
    assert (found.steps[0].mean_rating, found.steps[0].rated) == (4.5, 2)
    assert found.steps[1].mean_rating is None
    assert [step.jobs[0].job_id for step in found.steps] == [jobs[0], jobs[2], jobs[4]]


async def test_a_step_that_fails_says_why_and_may_be_retried(tmp_path: Path) -> None:
    begun: list[str] = []

    def long_once(attempt: Attempt) -> float:
        if record_of(attempt).learning.step == 1:
            begun.append(attempt.job)
        return 600.0 if begun == [attempt.job] else 0.0

    async with ranch(tmp_path, long_once) as one:
        started = await one.start(images=1)
        job, last = (started.result.steps[number].jobs[0].job_id for number in (1, 2))
        await one.made.until(job, AttemptStarted)
        await one.made.until_ended(last)
        assert (await one.step(2)).images == 1
        assert not (await one.runs.show("cfg-1")).result.complete
        one.made.engine.fail(job, 1, Failure(code="bad_job", message="No such sampler."))
        result = await one.complete()
        assert (result.complete, result.steps[1].failed) == (True, 1)
        failed = result.steps[1].jobs[0]
        assert (failed.state, failed.code) == (State.FAILED, "bad_job")
        assert failed.message == "No such sampler."
        assert result.steps[1].mean_seconds is None
        path = tmp_path / "learning" / "runs" / "cfg-1" / "result.json"
        path.unlink()
        again = await one.made.queue.retry(job)
        assert (await one.complete()).steps[1].jobs[0].job_id == again
        assert (await one.step(1)).succeeded == 1
        assert started.run.jobs == 3


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"name": "../x"}, "name"),
        ({"name": ""}, "name"),
        ({"variable": "steps"}, "variable"),
        ({"variable": "txt2img.stepps"}, "variable.txt2img.stepps"),
        ({"values": []}, "values"),
        ({"values": [1, 1]}, "values"),
        ({"values": ["many"]}, "variable.txt2img.cfg_scale"),
        ({"images": 0}, "images"),
        ({"pictures": 3}, "pictures"),
        ({"base": None, "preset": None}, "base.txt2img.model"),
    ],
)
async def test_what_is_no_plan_is_told_so(
    tmp_path: Path, changes: dict[str, Any], where: str
) -> None:
    async with ranch(tmp_path) as one:
        with pytest.raises(InvalidPlan) as told:
            await one.start(**changes)
        assert told.value.details["path"] == where, told.value
        assert not one.runs.all()
        assert not one.made.store.world.heads


async def test_a_dry_run_submits_nothing(tmp_path: Path) -> None:
    async with ranch(tmp_path) as one:
        told = await one.runs.start(json.dumps(PLAN).encode(), ANN, dry_run=True)
        assert (told.run.jobs, told.run.batch) == (6, "")
        assert [step.value for step in told.result.steps] == [5, 7.5, 10]
        assert not one.runs.all()
        assert not one.made.store.world.heads


def test_a_seed_that_is_left_out_follows_from_the_name() -> None:
    plan = {key: value for key, value in PLAN.items() if key != "seed"}
    seeds = [batch_plan(parse({**plan, "name": name}))["seed"] for name in ("a", "a", "b")]
    assert seeds[0] == seeds[1] != seeds[2]
