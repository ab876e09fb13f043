"""What a job's end means to its caller: a value, or an error that keeps the remote traceback.

This is the only place of the whole system that unpickles what a job produced.
"""

from __future__ import annotations

import functools
import io
import json
import linecache
import os
import pickle
import re
import stat
import sys
from collections.abc import Callable
from typing import Any, assert_never

import cloudpickle

from corral.core.errors import JobCancelled, JobError, JobFailed, JobRejected
from corral.core.job import Failure, State, Workload

_ERRORS: dict[str, type[JobError]] = {
    State.FAILED: JobFailed,
    State.CANCELLED: JobCancelled,
    State.REJECTED: JobRejected,
}


def is_pickled(workload: str) -> bool:
    """Whether this workload's results are pickles; those of an unknown one are never unpickled."""
    try:
        known = Workload(workload)
    except ValueError:
        return False
    match known:
        case Workload.PYTHON:
            return True
        case Workload.PIPELINE:
            return False
        case _:
            assert_never(known)


def value_of(data: bytes, workload: str = Workload.PYTHON) -> Any:
    """The value a function returned; scripts return none. What is not code has a result in JSON,
    whatever its worker says."""
    if is_pickled(workload):
        return _Unpickler(data).load()
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise JobError(
            f"The job's result is no JSON ({error}): its worker says nothing that can be read. Its "
            "artifacts are there; `corral retry` runs it again."
        ) from None


class _Unpickler(pickle.Unpickler):
    """Takes the caller's own classes as they are here. They came back by value, and cloudpickle
    would overwrite their methods with the copies that made the journey."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self._at_home: set[type] = set()

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if not module.startswith("cloudpickle"):
            return found
        if name.startswith("_make_skeleton_"):
            return lambda *args: self._make(found, args)
        if name == "_class_setstate":
            return lambda cls, state: cls if cls in self._at_home else found(cls, state)
        return found

    def _make(self, make: Callable[..., type], args: tuple[Any, ...]) -> type:
        *_, tracker_id, _extra = args
        known = tracker_id in cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
        cls = make(*args)
        if known:
            self._at_home.add(cls)
        return cls


def error_of(job_id: str, state: str, failure: Failure | None) -> JobError:
    """The error of a job without a result; its cause is the job's own where that can be made."""
    cls = _ERRORS.get(state, JobFailed)
    error = cls(_sentence(job_id, state, failure), job_id=job_id)
    traceback = with_source(failure.traceback) if failure else ""
    error.failure, error.remote_traceback = failure, traceback
    if failure is None:
        return error
    error.details = {"code": failure.code, "type": failure.type, "message": failure.message}
    if failure.exit_code is not None:
        error.details["exit_code"] = failure.exit_code
    if traceback:
        error.add_note(f"In the job:\n{traceback.rstrip()}")
    error.__cause__ = _cause(failure.pickled)
    return error


_PLACE = re.compile(r'  File "(?P<path>[^"]+)", line (?P<line>\d{1,9})')
_SOURCE_BYTES = 4 << 20


def with_source(traceback: str) -> str:
    """The traceback with lines of source that the worker could not see, but this program can: its
    own, and no other file that somebody names."""
    lines = traceback.splitlines()
    told = []
    for number, line in enumerate(lines):
        told.append(line)
        following = lines[number + 1] if number + 1 < len(lines) else ""
        place = _PLACE.match(line)
        if place and not following.startswith("    "):
            source = _own_line(place["path"], int(place["line"])).strip()
            if source:
                told.append(f"    {source}")
    return "\n".join(told)


def _own_line(path: str, number: int) -> str:
    """A line of code that this program runs, from a notebook's cell or a plain file."""
    kept = linecache.cache.get(path)
    if kept is None or len(kept) == 1:
        if path not in _own_files(len(sys.modules)):
            return ""
        try:
            found = os.stat(path)
        except OSError:
            return ""
        if not stat.S_ISREG(found.st_mode) or found.st_size > _SOURCE_BYTES:
            return ""  # a program that came from a pipe, for one
    return linecache.getline(path, number)


@functools.lru_cache(maxsize=1)
def _own_files(modules: int) -> frozenset[str]:
    """The files of this program's modules, looked for again when there are more."""
    known = [getattr(module, "__dict__", {}) for module in list(sys.modules.values())]
    files = (names.get("__file__") for names in known)
    return frozenset(file for file in files if isinstance(file, str))


def _sentence(job_id: str, state: str, failure: Failure | None) -> str:
    if failure is None:
        return f"Job {job_id} was {state}."
    reason = f"{failure.type}: {failure.message}" if failure.type else failure.message
    return f"Job {job_id} {'failed' if state == State.FAILED else f'was {state}'}: {reason}"


def _cause(pickled: bytes | None) -> BaseException | None:
    if not pickled:
        return None
    try:
        found = value_of(pickled)
    except Exception:  # its class may not exist here, or not want to be made again
        return None
    return found if isinstance(found, Exception) else None
