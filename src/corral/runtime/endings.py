"""How attempts end badly, as plain data: what happened, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping

from corral.runtime.failures import Failure, signal_name
from corral.runtime.hints import GIB
from corral.runtime.process.memory_kills import MemoryKills

CANCELLED: Failure = {
    "code": "cancelled",
    "message": "The job was cancelled while it ran, and its processes were ended.",
}
CANCELLED_BEFORE: Failure = {
    "code": "cancelled",
    "message": "The job was cancelled before it started.",
}
IMAGES_REFUSED: Failure = {
    "code": "workload_refused",
    "message": "This worker has nothing to render images with (worker.backends is empty); another "
    "worker must take the job.",
}
STOPPING: Failure = {
    "code": "worker_stopping",
    "message": "The worker is stopping and the job did not end within the grace period.",
}
GARBLED: Failure = {
    "code": "no_result",
    "message": "What the job's process told its worker could not be read, so it was ended. Only "
    "Corral writes to the descriptors that a job finds open beside 0, 1 and 2.",
}

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
"""Codes that a job process may report. The others say what only whoever holds it can know: that
the job was cancelled, or that its worker leaves. A job that says so of itself is not believed."""

OF_PIPELINES = OF_JOBS | {
    "bad_job",
    "model_missing",
    "stage_missing",
    "backend_mismatch",
    "backend_down",
    "backend_silent",
    "result_refused",
}
"""Codes that our own code may report beside them."""


def survived(failure: Failure) -> Failure:
    """What is known to be left is said, where somebody reads how the job ended."""
    but = "But some of its processes could not be ended and may still run on the worker."
    return {**failure, "message": f"{failure['message']} {but}"}


def no_runner(error: Exception) -> Failure:
    return {
        "code": "process_died",
        "message": f"This worker could not start a process for the job: {error}.",
    }


def not_prepared(error: Exception) -> Failure:
    said = f"The worker could not prepare it: {type(error).__name__}: {error}"
    return {"code": "transfer_failed", "message": said}


def over_duration(duration_s: float) -> Failure:
    return {
        "code": "over_duration",
        "message": f"The job ran longer than its duration of {duration_s:g} s and was ended with "
        "all its processes. `corral retry JOB --duration …` runs it for longer, on from its last "
        "checkpoint where it has one.",
    }


def over_memory(held_gb: float, limit_gb: float) -> Failure:
    return {
        "code": "out_of_memory",
        "message": f"The job's processes held {held_gb:.2f} GB, more than its memory_gb of "
        f"{limit_gb:g}, and were ended. Submit it with a larger memory_gb.",
    }


def killed_for_memory(held_bytes: int, kills: MemoryKills) -> Failure:
    held = f"it held up to {held_bytes / GIB:.2f} GB" if held_bytes else "nobody saw what it held"
    has = f", and its worker's {kills.where} has {kills.limit_bytes / GIB:.2f} GB for all that runs"
    return {
        "code": "out_of_memory",
        "message": f"The kernel ended the job's process because memory ran out: {held}"
        f"{has if kills.limit_bytes else ''}. Let it hold less, or submit it with memory_gb "
        "(`--memory-gb`): then it runs where so much is free, and nothing else gets that.",
        "exit_code": -9,
    }


def requirements_failed(requirements: tuple[str, ...], said: str) -> Failure:
    return {
        "code": "environment_failed",
        "message": f"The requirements could not be installed: {', '.join(requirements)}. "
        f"uv said: {said}",
    }


def no_environment(error: Exception) -> Failure:
    return {
        "code": "backend_down",
        "message": f"This worker could not make the job's environment: {error}.",
    }


def no_python(own: str, wanted: str, said: str) -> Failure:
    return {
        "code": "python_unavailable",
        "message": f"This worker has Python {own}; the job needs Python {wanted}, which uv could "
        f"not provide here. Submit from Python {own}, or install Python {wanted} on the worker. "
        f"uv said: {said}",
    }


def of_error(failure: Failure, *, is_code: bool) -> Failure:
    """What a runner said, where a job may say so."""
    if failure["code"] in (OF_JOBS if is_code else OF_PIPELINES):
        return failure
    code = "killed_by_signal" if failure["code"] == "cancelled" else "exception"
    message = f"{failure['message']} Nobody asked it to: the job ended itself so."
    return {**failure, "code": code, "message": message}


def of_death(
    code: int | None,
    stderr: bytes,
    secrets: Mapping[str, str],
    *,
    began: bool,
    started: bool = True,
) -> Failure:
    """A runner ended without saying how the attempt did; `started` where there was one at all."""
    said = stderr.decode(errors="replace").strip()
    if said and secrets:
        from corral.runtime.channels.redaction import Redactor

        said = Redactor(secrets).text(said)
    kind = "process_died"
    if code is not None and code < 0:
        name = signal_name(-code)
        named = f"signal {-code} ({name})" if name.startswith("SIG") else name
        message = f"The job's process was killed by {named}."
    elif not began or code is None:
        how = f"ended with exit code {code}" if started else "could not be started"
        message = f"The process for the job {how} before the job began."
    elif code == 0:
        kind = "no_result"
        message = (
            "The job's process exited with code 0 but without a result. A function must return, "
            "not end its process."
        )
    else:
        # How a job's process ends is said by the one that watches it; without that, it died
        # between taking the order and beginning with it.
        message = "The process for the job died just as the job began."
    detail = f" It said: {said}" if said else ""
    return {"code": kind, "message": f"{message}{detail}", "exit_code": code}
