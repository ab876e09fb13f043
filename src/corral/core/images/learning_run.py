"""What a learning run came to: its steps in their order, in whatever order their jobs ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from corral.core.images.learning import LearningRecord, Rating
from corral.core.job import ENDED, State


class StepJob(Struct, frozen=True):
    """One image of a step, or as many as its record makes at once."""

    job_id: str
    step: int
    number: int
    """Which of the step's; it has the same seed in every step."""
    state: str
    worker: str = ""
    seconds: float = 0.0
    stage_seconds: float = 0.0
    """Of all stages together, by the backends' own word."""
    ended_at: float = 0.0
    seeds: tuple[int, ...] = ()
    images: tuple[str, ...] = ()
    pixels: tuple[str, ...] = ()
    """The pixel_sha256 of each."""
    code: str = ""
    message: str = ""
    rating: int | None = None

    @property
    def ended(self) -> bool:
        return self.state in ENDED


class Step(Struct, frozen=True):
    step: int
    value: Any
    jobs: tuple[StepJob, ...]
    succeeded: int
    failed: int
    """Or cancelled."""
    images: int
    mean_seconds: float | None
    mean_stage_seconds: float | None
    rated: int
    mean_rating: float | None


class LearningRunResult(Struct, frozen=True, kw_only=True):
    name: str
    batch: str
    variable: str
    seed: int
    planned: int
    """Jobs of the run."""
    ended: int = 0
    complete: bool = False
    started_at: float
    ended_at: float = 0.0
    """Of the last job; 0 while one lives."""
    steps: tuple[Step, ...] = ()


def step_job(record: LearningRecord, step: int, number: int) -> StepJob:
    return StepJob(
        job_id=record.job_id,
        step=step,
        number=number,
        state=State.SUCCEEDED.value,
        worker=record.worker,
        seconds=record.seconds,
        stage_seconds=sum(stage.seconds for stage in record.stages),
        ended_at=record.ended_at,
        seeds=record.seeds,
        images=tuple(image.name for image in record.images),
        pixels=tuple(image.pixel_sha256 for image in record.images),
    )


def gathered(
    begun: LearningRunResult, values: Iterable[Any], jobs: Iterable[StepJob]
) -> LearningRunResult:
    """A job that was retried counts once: as the one that succeeded, or else the last."""
    chosen: dict[tuple[int, int], StepJob] = {}
    for job in sorted(jobs, key=lambda job: job.job_id):
        before = chosen.get((job.step, job.number))
        if before is None or before.state != State.SUCCEEDED:
            chosen[job.step, job.number] = job
    steps = tuple(
        _step(number, value, [chosen[key] for key in sorted(chosen) if key[0] == number])
        for number, value in enumerate(values)
    )
    ended = sum(job.ended for job in chosen.values())
    complete = ended == begun.planned
    last = max((job.ended_at for job in chosen.values()), default=0.0)
    ended_at = last if complete else 0.0
    return replace(begun, ended=ended, complete=complete, ended_at=ended_at, steps=steps)


def _step(number: int, value: Any, jobs: list[StepJob]) -> Step:
    done = [job for job in jobs if job.state == State.SUCCEEDED]
    ratings = [job.rating for job in jobs if job.rating is not None]
    return Step(
        step=number,
        value=value,
        jobs=tuple(jobs),
        succeeded=len(done),
        failed=sum(job.ended for job in jobs) - len(done),
        images=sum(len(job.images) for job in done),
        mean_seconds=_mean([job.seconds for job in done]),
        mean_stage_seconds=_mean([job.stage_seconds for job in done]),
        rated=len(ratings),
        mean_rating=_mean(ratings),
    )


def _mean(numbers: list[float] | list[int]) -> float | None:
    return sum(numbers) / len(numbers) if numbers else None


def with_ratings(result: LearningRunResult, ratings: Mapping[str, Rating]) -> LearningRunResult:
    """Ratings come when they come, so they are joined whenever somebody looks."""
    steps = []
    for step in result.steps:
        jobs = [
            replace(job, rating=ratings[job.job_id].rating if job.job_id in ratings else None)
            for job in step.jobs
        ]
        steps.append(_step(step.step, step.value, jobs))
    return replace(result, steps=tuple(steps))
