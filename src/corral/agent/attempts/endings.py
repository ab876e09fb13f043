"""How attempts end badly, in sentences: what happened, and what to do next."""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import asdict

from corral.agent.attempts.attempt import HeldAttempt
from corral.agent.inventory import GIB
from corral.agent.runners.frames import ErrorFrame
from corral.agent.runners.runner import Runner
from corral.core.job import Failure, Workload
from corral.runtime import endings
from corral.runtime.process.memory_kills import MemoryKills

OTHER_DOCUMENT = Failure(
    code="wrong_document",
    message="The job document does not have the digest it was announced with; "
    "submit the job again.",
)
CODE_REFUSED = Failure(
    code="workload_refused",
    message="This worker does not run code (worker.allow_code is off); "
    "another worker must take the job.",
)
CANCELLED = Failure(**endings.CANCELLED)
REVOKED = Failure(code="worker_lost", message="The worker was revoked.")
CANCELLED_BEFORE = Failure(**endings.CANCELLED_BEFORE)
STOPPING = Failure(**endings.STOPPING)

NEAR_LIMIT = 0.9
KILLED = -9
"""How a process ends that was sent SIGKILL."""


def refused(workload: Workload) -> Failure:
    match workload:
        case Workload.PYTHON:
            return CODE_REFUSED
        case Workload.PIPELINE:
            return Failure(**endings.IMAGES_REFUSED)
        case _:
            assert_never(workload)


def path_refused(path: str) -> Failure:
    return Failure(
        code="path_refused",
        message=f"Jobs may not read {path} on this worker: worker.read_paths of its corral.yaml "
        "would let them.",
    )


def unreadable_document(error: Exception) -> Failure:
    return Failure(
        code="wrong_document",
        message=f"The job document cannot be read by this worker: {error}.",
    )


def over_memory(attempt: HeldAttempt) -> Failure:
    limit_gb = attempt.dispatch.needs.memory_gb
    return Failure(**endings.over_memory(attempt.memory_seen / GIB, limit_gb))


def of_error(frame: ErrorFrame, attempt: HeldAttempt, kills: MemoryKills) -> Failure:
    """What the runner said, or better: a kill at the memory limit is the kernel's doing."""
    failure, brings_code = frame.failure, attempt.workload.brings_code
    said = endings.of_error(asdict(failure), is_code=brings_code)
    if said["code"] != failure.code:
        return Failure(**said)
    killed = failure.code in ("killed_by_signal", "process_died")
    if killed and _at_memory_limit(attempt):
        return over_memory(attempt)
    if failure.code == "process_died" and failure.exit_code == KILLED:
        return _killed(attempt, frame.held_bytes, kills) or failure
    return failure


def _killed(attempt: HeldAttempt, held_bytes: int, kills: MemoryKills) -> Failure | None:
    """Of a process that was killed, and not by us: how that was, if the kernel did it for want of
    memory."""
    held_bytes = max(held_bytes, attempt.memory_seen)
    if kills.since(attempt.kills_before, held_bytes):
        return Failure(**endings.killed_for_memory(held_bytes, kills))
    return None


def _at_memory_limit(attempt: HeldAttempt) -> bool:
    limit = attempt.dispatch.needs.memory_gb * GIB
    return limit > 0 and attempt.memory_seen >= limit * NEAR_LIMIT


def of_death(runner: Runner, attempt: HeldAttempt, kills: MemoryKills) -> Failure:
    """The runner ended without saying how the attempt did."""
    if runner.garbled:
        return Failure(**endings.GARBLED)
    if runner.code is not None and runner.code < 0 and _at_memory_limit(attempt):
        return over_memory(attempt)
    if runner.code == KILLED and (found := _killed(attempt, 0, kills)):
        return found
    began, started = attempt.started is not None, runner.tree is not None
    secrets = attempt.dispatch.secrets
    told = endings.of_death(runner.code, runner.stderr, secrets, began=began, started=started)
    return Failure(**told)
