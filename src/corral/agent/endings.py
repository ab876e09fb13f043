"""How attempts end badly, in sentences: what happened, and what to do next."""

from __future__ import annotations

import signal
from typing import assert_never

from msgspec.structs import replace

from corral.agent.attempt import Attempt
from corral.agent.inventory import GIB
from corral.agent.runner_process import Runner
from corral.core.job import Failure, Workload
from corral.runtime.redaction import Redactor

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
IMAGES_REFUSED = Failure(
    code="workload_refused",
    message="This worker has nothing to render images with (worker.backends is empty); another "
    "worker must take the job.",
)
CANCELLED = Failure(
    code="cancelled", message="The job was cancelled while it ran, and its processes were ended."
)
REVOKED = Failure(code="worker_lost", message="The worker was revoked.")
CANCELLED_BEFORE = Failure(code="cancelled", message="The job was cancelled before it started.")
STOPPING = Failure(
    code="worker_stopping",
    message="The worker is stopping and the job did not end within the grace period.",
)

NEAR_LIMIT = 0.9


def refused(workload: Workload) -> Failure:
    """It is sent what it does not accept."""
    match workload:
        case Workload.PYTHON:
            return CODE_REFUSED
        case Workload.PIPELINE:
            return IMAGES_REFUSED
        case _:
            assert_never(workload)


def unreadable_document(error: Exception) -> Failure:
    return Failure(
        code="wrong_document",
        message=f"The job document cannot be read by this worker: {error}.",
    )


def survived(failure: Failure) -> Failure:
    """What is known to be left is said, where somebody reads how the job ended."""
    but = "But some of its processes could not be ended and may still run on the worker."
    return replace(failure, message=f"{failure.message} {but}")


def no_runner(error: Exception) -> Failure:
    return Failure(
        code="process_died",
        message=f"This worker could not start a process for the job: {error}.",
    )


def over_duration(attempt: Attempt) -> Failure:
    return Failure(
        code="over_duration",
        message=f"The job ran longer than its duration of {attempt.dispatch.duration_s:g} s and "
        "was ended with all its processes. Submit it with a longer duration.",
    )


def over_memory(attempt: Attempt) -> Failure:
    limit = attempt.dispatch.needs.memory_gb
    return Failure(
        code="out_of_memory",
        message=f"The job's processes held {attempt.memory_seen / GIB:.2f} GB, more than its "
        f"memory_gb of {limit:g}, and were ended. Submit it with a larger memory_gb.",
    )


OF_JOBS = frozenset(
    {
        "exception",
        "exit_code",
        "no_result",
        "killed_by_signal",
        "process_died",
        "out_of_memory",
        "unpicklable_result",
        "bad_package",
        "transfer_failed",
        "secret_in_result",
    }
)
"""Codes that a job process may report. The others say what only this agent can know: that the
job was cancelled, or that its worker leaves. A job that says so of itself is not believed."""


OF_PIPELINES = OF_JOBS | {
    "bad_job",
    "model_missing",
    "stage_missing",
    "backend_mismatch",
    "backend_down",
    "result_refused",
}
"""Codes that our own code may report beside them."""


def of_error(failure: Failure, attempt: Attempt) -> Failure:
    """What the runner said, or better: a kill at the memory limit is the kernel's doing."""
    brings_code = attempt.recipe.workload.brings_code
    if failure.code not in (OF_JOBS if brings_code else OF_PIPELINES):
        code = "killed_by_signal" if failure.code == "cancelled" else "exception"
        message = f"{failure.message} Nobody asked it to: the job ended itself so."
        return replace(failure, code=code, message=message)
    killed = failure.code in ("killed_by_signal", "process_died")
    if killed and _at_memory_limit(attempt):
        return over_memory(attempt)
    return failure


def _at_memory_limit(attempt: Attempt) -> bool:
    limit = attempt.dispatch.needs.memory_gb * GIB
    return limit > 0 and attempt.memory_seen >= limit * NEAR_LIMIT


GARBLED = Failure(
    code="no_result",
    message="What the job's process told its worker could not be read, so it was ended. Only "
    "Corral writes to the descriptors that a job finds open beside 0, 1 and 2.",
)


def of_death(runner: Runner, attempt: Attempt) -> Failure:
    """The runner ended without saying how the attempt did."""
    code = runner.code
    if runner.garbled:
        return GARBLED
    said = runner.stderr.decode(errors="replace").strip()
    if said and attempt.dispatch.secrets:
        said = Redactor(attempt.dispatch.secrets).text(said)
    detail = f" It said: {said}" if said else ""
    if code is not None and code < 0:
        if _at_memory_limit(attempt):
            return over_memory(attempt)
        return Failure(
            code="process_died",
            message=f"The job's process was killed by {_signal_name(-code)}.{detail}",
            exit_code=code,
        )
    if attempt.started is None or code is None:
        how = "could not be started" if runner.tree is None else f"ended with exit code {code}"
        return Failure(
            code="process_died",
            message=f"The process for the job {how} before the job began.{detail}",
            exit_code=code,
        )
    if code == 0:
        return Failure(
            code="no_result",
            message="The job's process exited with code 0 but without a result. A function must "
            f"return, not end its process.{detail}",
            exit_code=0,
        )
    # How a job's process ends is said by the one that watches it; without that, it died between
    # taking the order and beginning with it.
    return Failure(
        code="process_died",
        message=f"The process for the job died just as the job began.{detail}",
        exit_code=code,
    )


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"signal {number} ({name})"
