"""What the controller counts and what it logs, from facts alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from corral import logs
from corral.controller.journal.record import Change
from corral.controller.status.job_log import PER_LINE, JobLog
from corral.controller.status.statistics import WINDOW, Histogram, Statistics
from corral.core.events import (
    AttemptPlaced,
    AttemptStarted,
    JobCancelled,
    JobFailed,
    JobRequeued,
    JobStopping,
    JobSubmitted,
    JobSucceeded,
    Journaled,
)
from corral.core.job import Failure, Head, Needs, QueueClass
from corral.core.lifecycle import advance, born

BAD = Failure(code="exception", message="it broke")


def story(job: str, *facts: Journaled, at: float = 100.0, call: str = "c1") -> list[Change]:
    """A submission and what follows it, as the store would publish it."""
    first = JobSubmitted(
        job=job, at=at, needs=Needs(), digest="d", correlation_id=call, name="train", batch="b"
    )
    head: Head = born(first, 1)
    changes = [Change(1, first, head)]
    for seq, fact in enumerate(facts, 2):
        head = advance(head, fact, seq)
        changes.append(Change(seq, fact, head))
    return changes


def placed(job: str, attempt: int = 1) -> AttemptPlaced:
    return AttemptPlaced(job=job, at=101.0, attempt=attempt, worker="w1")


def started(job: str, attempt: int = 1, at: float = 102.0) -> AttemptStarted:
    return AttemptStarted(job=job, at=at, attempt=attempt)


def requeued(job: str, code: str, attempt: int = 1, fault: str = "worker") -> JobRequeued:
    return JobRequeued(job=job, at=103.0, attempt=attempt, code=code, message="", fault=fault)


def done(job: str, attempt: int = 1, seconds: float = 2.0) -> JobSucceeded:
    return JobSucceeded(job=job, at=110.0, attempt=attempt, seconds=seconds)


def counted(*stories: Sequence[Change]) -> Statistics:
    statistics = Statistics()
    for changes in stories:
        statistics.take(changes)
    return statistics


@pytest.mark.parametrize(
    ("facts", "outcomes"),
    [
        ([placed("j"), started("j"), done("j")], {("succeeded", ""): 1}),
        ([placed("j"), done("j")], {("succeeded", ""): 1}),
        (
            [placed("j"), started("j"), requeued("j", "worker_lost"), placed("j", 2), done("j", 2)],
            {("lost", ""): 1, ("succeeded", ""): 1},
        ),
        (
            [placed("j"), requeued("j", "returned", fault="none"), placed("j", 2), done("j", 2)],
            {("returned", ""): 1, ("succeeded", ""): 1},
        ),
        (
            [
                *(placed("j"), started("j"), requeued("j", "out_of_memory", fault="job")),
                *(placed("j", 2), JobFailed(job="j", at=120.0, attempt=2, failure=BAD)),
            ],
            {("failed", "memory"): 1, ("failed", "job"): 1},
        ),
        ([JobCancelled(job="j", at=101.0)], {}),
        (
            [
                *(placed("j"), JobStopping(job="j", at=102.0, attempt=1)),
                JobCancelled(job="j", at=103.0, attempt=1),
            ],
            {("cancelled", ""): 1},
        ),
    ],
)
def test_attempts_by_outcome(facts: list[Journaled], outcomes: dict[tuple[str, str], int]) -> None:
    statistics = counted(story("j", *facts))
    assert statistics.attempts == outcomes
    assert sum(statistics.ended.values()) == 1


def test_a_wait_ends_with_the_first_start() -> None:
    again: list[Journaled] = [
        requeued("j", "worker_lost"),
        placed("j", 2),
        started("j", 2, at=500.0),
        done("j", 2),
    ]
    statistics = counted(story("j", placed("j"), started("j"), *again))
    waits = statistics.waits[QueueClass.BATCH]
    assert (sum(waits.counts), waits.total) == (1, 2.0)
    # Never started by its own word: it began `seconds` before its end.
    statistics = counted(story("k", placed("k"), done("k", seconds=4.0)))
    assert statistics.waits[QueueClass.BATCH].total == 6.0


def test_recent_jobs() -> None:
    statistics = Statistics()
    assert statistics.success_ratio() is None
    failed: list[Journaled] = [placed("j"), JobFailed(job="j", at=105.0, attempt=1, failure=BAD)]
    statistics.take(story("j", *failed))
    for seconds in (1.0, 2.0, 6.0):
        statistics.take(story("j", placed("j"), done("j", seconds=seconds)))
    statistics.take(story("j", JobCancelled(job="j", at=101.0)))
    assert statistics.success_ratio() == 0.75
    for _ in range(WINDOW):
        statistics.take(story("j", placed("j"), done("j")))
    assert statistics.success_ratio() == 1.0


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1, 5))
    for value in (0, 1, 1.5, 5, 6):
        histogram.add(value)
    assert histogram.buckets() == [("1", 2.0), ("5", 4.0), ("+Inf", 5.0)]
    assert histogram.total == 13.5


# --- the log ---


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a command that ran earlier in this process made of the log."""
    monkeypatch.setattr(logs, "_road", None)
    before = structlog.get_config()
    structlog.reset_defaults()
    yield
    structlog.configure(**before)


def told(*changes: Change) -> list[Any]:
    narration = JobLog(lambda: {"w1": "attic"})
    with capture_logs() as lines:
        narration.take(changes)
        assert not lines  # nobody's answer waits for them
        narration.flush()
    return list(lines)


async def test_one_job_one_line_each() -> None:
    lines = told(*story("j1", placed("j1"), started("j1"), done("j1")))
    assert [line["event"] for line in lines] == [
        "job_submitted",
        "attempt_placed",
        "attempt_started",
        "attempt_succeeded",
    ]
    assert {line["job"] for line in lines} == {"j1"}
    assert {line["correlation_id"] for line in lines} == {"c1"}
    assert {line["worker"] for line in lines[1:]} == {"attic"}
    assert {line["attempt"] for line in lines[1:]} == {1}
    assert lines[0]["name"] == "train"
    assert lines[-1]["seconds"] == 2.0


async def test_jobs_of_one_call_share_lines() -> None:
    jobs = [f"a{n}" for n in range(PER_LINE + 2)]
    mine = [change for job in jobs for change in story(job)]
    other = story("b", call="c2")
    first, second, single = told(*mine[:3], *other, *mine[3:])
    assert (first["event"], first["count"]) == ("jobs_submitted", PER_LINE)
    assert first["jobs"] + second["jobs"] == jobs
    assert (single["event"], single["job"], single["correlation_id"]) == (
        "job_submitted",
        "b",
        "c2",
    )


async def test_what_goes_wrong_has_its_own_line() -> None:
    facts: list[Journaled] = [placed("j"), started("j"), requeued("j", "process_died")]
    facts += [placed("j", 2), JobFailed(job="j", at=110.0, attempt=2, failure=BAD)]
    lines = [line for line in told(*story("j", *facts)) if line["log_level"] == "warning"]
    assert [(line["event"], line["attempt"], line["code"]) for line in lines] == [
        ("job_requeued", 1, "process_died"),
        ("job_failed", 2, "exception"),
    ]
    assert lines[1]["error"] == "it broke"
