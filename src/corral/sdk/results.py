"""What a job's end means to its caller: a value, or an error that keeps the remote traceback.

This is the only place of the whole system that unpickles what a job produced.
"""

from __future__ import annotations

import pickle
from typing import Any

from corral.core.errors import JobCancelled, JobError, JobFailed, JobRejected
from corral.core.job import Failure, State

_ERRORS: dict[str, type[JobError]] = {
    State.FAILED: JobFailed,
    State.CANCELLED: JobCancelled,
    State.REJECTED: JobRejected,
}


def value_of(data: bytes | None) -> Any:
    """The value a function returned; scripts return none."""
    return None if data is None else pickle.loads(data)  # noqa: S301 - the caller's own job


def error_of(job_id: str, state: str, failure: Failure | None) -> JobError:
    """The exception for a job that ended without a result. The job's own exception is its cause
    where this process can make it again."""
    cls = _ERRORS.get(state, JobFailed)
    error = cls(_sentence(job_id, state, failure), job_id=job_id)
    traceback = failure.traceback if failure else ""
    vars(error).update(failure=failure, remote_traceback=traceback)
    if failure is None:
        return error
    error.details = {"code": failure.code, "type": failure.type, "message": failure.message}
    if failure.exit_code is not None:
        error.details["exit_code"] = failure.exit_code
    if traceback:
        error.add_note(f"In the job:\n{traceback.rstrip()}")
    error.__cause__ = _cause(failure.pickled)
    return error


def _sentence(job_id: str, state: str, failure: Failure | None) -> str:
    if failure is None:
        return f"Job {job_id} was {state}."
    reason = f"{failure.type}: {failure.message}" if failure.type else failure.message
    if state == State.CANCELLED:
        return f"Job {job_id} was cancelled: {reason}"
    return f"Job {job_id} {'failed' if state == State.FAILED else f'was {state}'}: {reason}"


def _cause(pickled: bytes | None) -> BaseException | None:
    if not pickled:
        return None
    try:
        found = pickle.loads(pickled)  # noqa: S301 - the caller's own job
    except Exception:  # its class may not exist here, or not want to be made again
        return None
    return found if isinstance(found, Exception) else None
