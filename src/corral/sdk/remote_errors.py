"""Why a job has no result, as the error its caller gets: a JobFailed with the remote traceback,
which is also what the job raised, so that `except ValueError` means what it means at home.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import re
import stat
import sys
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

from corral.core.errors import JobCancelled, JobError, JobFailed, JobRejected
from corral.core.job import Failure, State
from corral.sdk.results import value_of

_ERRORS: dict[str, type[JobError]] = {
    State.FAILED: JobFailed,
    State.CANCELLED: JobCancelled,
    State.REJECTED: JobRejected,
}
_FOR_LOOPS = (StopIteration, StopAsyncIteration)
"""Whoever calls next() would take them for the end."""


def error_of(job_id: str, state: str, failure: Failure | None) -> JobError:
    """The error of a job without a result; its cause is the job's own where that can be made."""
    sentence = _sentence(job_id, state, failure)
    if failure is None:
        return _ERRORS.get(state, JobFailed)(sentence, job_id=job_id)
    cause = _cause(failure.pickled)
    error: JobError | None = None
    if state == State.FAILED:
        error = _also_what_was_raised(sentence, cause, failure.type)
    error = error or _ERRORS.get(state, JobFailed)(sentence)
    traceback = with_source(failure.traceback)
    error.job_id, error.failure, error.remote_traceback = job_id, failure, traceback
    error.details = {"code": failure.code, "type": failure.type, "message": failure.message}
    if failure.exit_code is not None:
        error.details["exit_code"] = failure.exit_code
    if traceback:
        error.add_note(f"In the job:\n{traceback.rstrip()}")
    error.__cause__ = cause
    return error


def _also_what_was_raised(sentence: str, cause: Exception | None, name: str) -> JobFailed | None:
    raised: Any = type(cause) if cause is not None else _known(name)
    if raised is None or issubclass(raised, _FOR_LOOPS):
        return None
    # Its own `__init__` has run where it was raised, and would not know our sentence.
    builtin = next(one for one in raised.__mro__ if one.__module__ == "builtins")
    parts = (cause.exceptions,) if isinstance(cause, ExceptionGroup) else ()
    try:
        error = builtin.__new__(_both(raised), sentence, *parts)
    except (TypeError, ValueError):  # two classes that cannot meet
        return None
    assert isinstance(error, JobFailed)
    error.args = (sentence,)
    # Past a class's own attributes: a group of exceptions has a message that cannot be set.
    error.__dict__ |= {"message": sentence, "job_id": None, "details": {}}
    if cause is not None:
        _take_over(error, cause)
    return error


@functools.lru_cache(maxsize=256)
def _both(raised: type[Exception]) -> type[Exception]:
    body = {
        "__module__": "corral",
        "__str__": lambda error: error.args[0],  # a KeyError would quote it
        "__reduce__": lambda error: (error_of, (error.job_id, State.FAILED, error.failure)),
    }
    return type(f"JobFailed[{raised.__name__}]", (JobFailed, raised), body)


def _take_over(error: JobFailed, cause: Exception) -> None:
    """What somebody who catches the exception reads of it. Corral's own attributes stay."""
    ours = {*dir(JobFailed), *vars(error)}
    error.__dict__ |= {name: value for name, value in vars(cause).items() if name not in ours}
    for cls in type(cause).__mro__:
        if cls is Exception:
            return
        for name, member in vars(cls).items():
            if isinstance(member, GetSetDescriptorType | MemberDescriptorType) and name not in ours:
                with contextlib.suppress(AttributeError, TypeError):
                    setattr(error, name, getattr(cause, name))


def _known(name: str) -> type[Exception] | None:
    """A class that this program has already: nothing is loaded because a worker names it."""
    module, _, cls = name.rpartition(".")
    found = getattr(sys.modules.get(module or "builtins"), "__dict__", {}).get(cls)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


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


def _cause(pickled: bytes | None) -> Exception | None:
    if not pickled:
        return None
    try:
        found = value_of(pickled)
    except Exception:  # its class may not exist here, or not want to be made again
        return None
    return found if isinstance(found, Exception) else None
