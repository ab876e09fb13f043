"""What an ending means: success, another try (where, when), or failure. Engines only report."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from corral.core.events import (
    AttemptExited,
    JobCancelled,
    JobFailed,
    JobRequeued,
    JobSucceeded,
    Life,
)
from corral.core.failures import FailureClass, classify
from corral.core.job import Failure, Head, State
from corral.core.lifecycle import advance
from corral.core.worker import Worker
from corral.scheduler.fit import refuse_ever

MOST_PAUSES = 3
"""Doublings of the pause after which a job tries an image server that was silent."""


class Policy(Struct, frozen=True):
    max_losses: int = 5
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0


def settle(
    head: Head,
    exit: AttemptExited,
    *,
    digest: str,
    now: float,
    policy: Policy,
    workers: Sequence[Worker],
    jitter: float,
) -> Life:
    """The one fact that follows from the end of a job's current attempt. `digest` is that of the
    job's document, `jitter` is 0 to 1."""
    failure = exit.failure
    if failure is None and exit.digest != digest:
        failure = Failure(
            code="wrong_document",
            message="The worker answered for another document than the one it was sent.",
        )
    if failure is None:
        return JobSucceeded(
            job=head.id,
            at=now,
            attempt=head.attempt,
            seconds=exit.seconds,
            result=exit.result,
            output=exit.output,
        )
    if head.state is State.STOPPING:
        return JobCancelled(head.id, now, head.attempt, exit.seconds, exit.output)
    again = _again(head, failure, exit.output, now, policy, jitter, workers)
    if again is not None and _possible(head, again, workers):
        return again
    return JobFailed(
        job=head.id,
        at=now,
        attempt=head.attempt,
        failure=failure,
        seconds=exit.seconds,
        output=exit.output,
    )


def _again(
    head: Head,
    failure: Failure,
    output: int,
    now: float,
    policy: Policy,
    jitter: float,
    workers: Sequence[Worker],
) -> JobRequeued | None:
    def requeued(
        fault: str, tries: int, *, avoid: str = "", above_vram_gb: float = 0.0
    ) -> JobRequeued:
        return JobRequeued(
            job=head.id,
            at=now,
            attempt=head.attempt,
            code=failure.code,
            message=failure.reason,
            fault=fault,
            not_before=now + backoff(tries, policy, jitter),
            avoid=avoid,
            above_vram_gb=above_vram_gb,
            output=output,
        )

    kind, course = classify(failure.code), head.course
    if failure.code == "worker_stopping":
        return requeued("none", 0)  # nobody's fault: its worker was told to leave
    if kind is FailureClass.SERVER:
        free = head.attempt - course.losses - course.failures
        return requeued("none", min(max(free, 1), MOST_PAUSES))
    if kind is FailureClass.WORKER and course.losses < policy.max_losses:
        return requeued("worker", course.losses)
    if kind is FailureClass.ELSEWHERE and course.losses < policy.max_losses:
        return requeued("worker", 0, avoid=head.worker)
    if kind in (FailureClass.JOB, FailureClass.MEMORY) and course.failures < head.given.retries:
        above = _vram_it_had(head, workers) if kind is FailureClass.MEMORY else 0.0
        return requeued("job", course.failures + 1, above_vram_gb=above)
    return None


def _possible(head: Head, again: JobRequeued, workers: Sequence[Worker]) -> bool:
    """A narrowed job that no known worker could take any more fails now, with its real reason."""
    if not again.avoid and not again.above_vram_gb:
        return True
    shape = advance(head, again, head.last_seq).shape
    return any(refuse_ever(shape, worker) is None for worker in workers)


def _vram_it_had(head: Head, workers: Sequence[Worker]) -> float:
    """Without what others held there: when they are gone, the same card may do."""
    sizes = (
        max(gpu.vram_gb - dict(worker.taken).get(gpu.uuid, 0.0), 0.0)
        for worker in workers
        if worker.id == head.worker
        for gpu in worker.capabilities.gpus
        if gpu.uuid in head.course.devices
    )
    return max(sizes, default=0.0)


def backoff(tries: int, policy: Policy, jitter: float) -> float:
    """Nothing the first time, then doubling up to the limit, each between half and whole."""
    if tries <= 0 or policy.backoff_s <= 0:
        return 0.0
    full = min(policy.backoff_max_s, policy.backoff_s * 2 ** min(tries - 1, 30))
    return float(full * (0.5 + jitter / 2))
