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

from corral.core.errors import CorralError, JobCancelled, JobError, JobFailed, JobRejected
from corral.core.job import Failure, State
from corral.sdk.results import value_of

_ERRORS: dict[str, type[JobError]] = {
    State.FAILED: JobFailed,
    State.CANCELLED: JobCancelled,
    State.REJECTED: JobRejected,
}
_ALONE = (StopIteration, StopAsyncIteration, JobError)
"""Whoever calls next() would take the first two for the end; the last says how *this* job ended."""


def error_of(job_id: str, state: str, failure: Failure | None) -> JobError:
    """The error of a job without a result; its cause is the job's own where that can be made."""
    sentence = _sentence(job_id, state, failure)
    if failure is None:
        return _ERRORS.get(state, JobFailed)(sentence, job_id=job_id)
    cause = _cause(failure.pickled)
    if state == State.FAILED:
        raised: Any = type(cause) if cause is not None else _known(failure.type)
        if raised is not None and not issubclass(raised, _ALONE):
            # Its class is somebody's, and may refuse whatever is asked of it.
            with contextlib.suppress(Exception):
                return _filled(_also(raised, sentence, cause), sentence, job_id, failure, cause)
    error = _ERRORS.get(state, JobFailed)(sentence)
    return _filled(error, sentence, job_id, failure, cause)


def _filled(
    error: JobError, sentence: str, job_id: str, failure: Failure, cause: Exception | None
) -> JobError:
    error.message, error.job_id, error.failure = sentence, job_id, failure
    error.details = {"code": failure.code, "type": failure.type, "message": failure.message}
    if failure.exit_code is not None:
        error.details["exit_code"] = failure.exit_code
    error.remote_traceback = with_source(failure.traceback)
    if error.remote_traceback:
        error.add_note(f"In the job:\n{error.remote_traceback.rstrip()}")
    error.__cause__ = cause
    return error


def _also(raised: Any, sentence: str, cause: Exception | None) -> JobError:
    """An error that is what was raised, too. Its own `__init__` has run where it was raised, and
    would not know our sentence."""
    both: Any = _both(raised)
    builtin = both  # by the way that Python made it: a class may have several among its bases
    while builtin.__module__ != "builtins":
        builtin = builtin.__base__
    parts = (cause.exceptions,) if isinstance(cause, ExceptionGroup) else ()
    error = builtin.__new__(both, sentence, *parts)
    error.args = (sentence,)
    if cause is not None:
        error.args = BaseException.args.__get__(cause)  # type: ignore[attr-defined]
        _take_over(error, cause)
    return error  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=256)
def _both(raised: type[Exception]) -> type[Exception]:
    ours = {
        **dict.fromkeys(("message", "job_id", "details", "failure"), None),
        "remote_traceback": "",
        # What a class may have made its own, and what is then needed of an exception.
        "args": BaseException.__dict__["args"],
        "__setattr__": BaseException.__setattr__,
        "__module__": "corral",
        "__str__": lambda error: error.message,
        "__reduce_ex__": lambda error, _: (error_of, (error.job_id, State.FAILED, error.failure)),
    }
    return type(f"JobFailed[{raised.__name__}]", (JobFailed, raised), ours)


def _take_over(error: JobError, cause: Exception) -> None:
    """What somebody who catches the exception reads of it. Corral's own attributes stay."""
    ours = {*dir(JobFailed), "message", "job_id", "details"}
    for name, value in vars(cause).items():
        if name == "__notes__":
            error.__notes__ = list(value)
        elif name not in ours:
            error.__dict__[name] = value
    for cls in type(cause).__mro__:
        if cls is Exception:
            return
        for name, member in vars(cls).items():
            if isinstance(member, GetSetDescriptorType | MemberDescriptorType) and name not in ours:
                with contextlib.suppress(AttributeError, TypeError):
                    setattr(error, name, getattr(cause, name))


def _known(name: str) -> type[Exception] | None:
    """A class that this program has already: nothing is loaded because a worker names it, and no
    error of Corral's own is taken for one."""
    module, _, cls = name.rpartition(".")
    found = getattr(sys.modules.get(module or "builtins"), "__dict__", {}).get(cls)
    if not isinstance(found, type) or not issubclass(found, Exception):
        return None
    return None if issubclass(found, CorralError) else found


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
    reason = failure.reason
    return f"Job {job_id} {'failed' if state == State.FAILED else f'was {state}'}: {reason}"


def _cause(pickled: bytes | None) -> Exception | None:
    if not pickled:
        return None
    try:
        found = value_of(pickled)
    except Exception:  # its class may not exist here, or not want to be made again
        return None
    return found if isinstance(found, Exception) else None
