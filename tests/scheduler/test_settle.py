"""What an ending means: always a legal step, always bounded, always for a reason."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.core.events import (
    AttemptExited,
    AttemptPlaced,
    AttemptStarted,
    JobFailed,
    JobRequeued,
    JobStopping,
    JobSubmitted,
    JobSucceeded,
)
from corral.core.failures import CLASSES, FailureClass, classify
from corral.core.job import Blob, Failure, Head, Needs, State
from corral.core.lifecycle import advance, born
from corral.core.worker import GPU, Capabilities, Worker
from corral.scheduler.settle import Policy, backoff, settle


def worker(name: str, vram_gb: float) -> Worker:
    gpus = (GPU(f"GPU-{name}", "x", vram_gb),)
    can = Capabilities(cpus=4, memory_gb=8, gpus=gpus, workloads=("python",))
    return Worker(id=name, name=name, engine="simulated", capabilities=can)


WORKERS = [worker("small", 8), worker("large", 24)]


def queued(retries: int = 0, **needs: int) -> Head:
    fact = JobSubmitted(job="j", at=0.0, needs=Needs(**needs), digest="d", retries=retries)  # type: ignore[arg-type]
    return born(fact, 1)


def running(head: Head, on: str = "small") -> Head:
    placed = AttemptPlaced(job="j", at=1.0, attempt=head.attempt + 1, worker=on)
    started = AttemptStarted(job="j", at=2.0, attempt=head.attempt + 1, devices=(f"GPU-{on}",))
    return advance(advance(head, placed, 2), started, 3)


def ended(head: Head, code: str | None, digest: str = "d") -> AttemptExited:
    failure = Failure(code=code, message=code) if code else None
    result = None if code else Blob.of(b"x")
    return AttemptExited("j", head.attempt, head.worker, 9.0, 1.0, digest, result, failure)


def conclude(head: Head, code: str | None, policy: Policy | None = None, **more: str) -> object:
    policy = policy or Policy()
    exit = ended(head, code, **more)
    return settle(head, exit, digest="d", now=10.0, policy=policy, workers=WORKERS, jitter=0.5)


@given(
    st.lists(st.sampled_from(sorted(CLASSES)), min_size=60, max_size=60),
    st.integers(0, 3),
    st.integers(0, 3),
)
@settings(max_examples=200, deadline=None)
def test_every_ending_is_a_legal_step_and_tries_are_bounded(
    codes: list[str], retries: int, losses: int
) -> None:
    head, tries, free = queued(retries, gpus=1), 0, 0
    for code in codes:
        head = running(head, "small" if "small" not in head.shape.avoid else "large")
        policy, exit = Policy(losses), ended(head, code)
        fact = settle(head, exit, digest="d", now=10.0, policy=policy, workers=WORKERS, jitter=0.1)
        head = advance(head, fact, head.last_seq + 1)
        tries += 1
        free += code in ("worker_stopping", "backend_silent")
        if head.state.ended:
            break
    assert tries - free <= retries + losses + 1
    assert head.state in (State.FAILED, State.QUEUED)


def test_success_is_for_this_document_alone() -> None:
    assert isinstance(conclude(running(queued()), None), JobSucceeded)
    wrong = conclude(running(queued(retries=5)), None, digest="other")
    assert isinstance(wrong, JobFailed)
    assert wrong.failure.code == "wrong_document"


@pytest.mark.parametrize("code", [c for c, k in CLASSES.items() if k is FailureClass.BAD_JOB])
def test_a_bad_job_fails_now(code: str) -> None:
    assert isinstance(conclude(running(queued(retries=9)), code), JobFailed)


def test_a_job_of_its_own_fault_counts_its_retries() -> None:
    assert isinstance(conclude(running(queued(retries=0)), "exception"), JobFailed)
    again = conclude(running(queued(retries=1)), "exception")
    assert isinstance(again, JobRequeued)
    assert again.fault == "job"
    assert again.not_before > 10.0


def test_a_lost_worker_costs_no_retry_and_the_first_time_no_pause() -> None:
    again = conclude(running(queued(retries=0)), "worker_lost")
    assert isinstance(again, JobRequeued)
    assert (again.fault, again.not_before) == ("worker", 10.0)


def test_what_a_worker_lacks_is_sought_elsewhere_until_nobody_is_left() -> None:
    again = conclude(running(queued()), "model_missing")
    assert isinstance(again, JobRequeued)
    assert again.avoid == "small"
    head = advance(running(queued()), again, 4)
    assert isinstance(conclude(running(head, "large"), "model_missing"), JobFailed)


def test_out_of_memory_needs_a_larger_card() -> None:
    again = conclude(running(queued(retries=2, gpus=1)), "out_of_memory")
    assert isinstance(again, JobRequeued)
    assert again.above_vram_gb == 8
    largest = running(queued(retries=2, gpus=1), "large")
    assert isinstance(conclude(largest, "out_of_memory"), JobFailed)


def test_a_stopping_job_is_cancelled_or_had_finished() -> None:
    stopping = advance(running(queued(retries=3)), JobStopping(job="j", at=4.0, attempt=1), 4)
    for code in ("exception", "cancelled", "worker_lost"):
        assert type(conclude(stopping, code)).__name__ == "JobCancelled"
    assert isinstance(conclude(stopping, None), JobSucceeded)


@given(st.integers(0, 50), st.floats(0, 1))
def test_pauses_double_and_stay_bounded(tries: int, jitter: float) -> None:
    pause = backoff(tries, Policy(backoff_s=1.0, backoff_max_s=60.0), jitter)
    assert 0.0 <= pause <= 60.0
    if tries:
        assert pause >= 0.5


def test_a_code_from_a_newer_worker_is_the_jobs_own_doing() -> None:
    assert classify("invented_later") is FailureClass.JOB


def test_what_is_tried_again_says_which_exception_it_was() -> None:
    head = running(queued(retries=1))
    failure = Failure(code="exception", message="division by zero", type="ZeroDivisionError")
    exit = AttemptExited("j", head.attempt, head.worker, 9.0, 1.0, "d", None, failure)
    again = settle(head, exit, digest="d", now=10.0, policy=Policy(), workers=WORKERS, jitter=0.5)
    assert isinstance(again, JobRequeued)
    assert again.message == "ZeroDivisionError: division by zero"
