"""What a job returned, as a value.

This is the only place of the whole system that unpickles what a job produced.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Callable
from typing import Any, assert_never

import cloudpickle

from corral.core.errors import JobError
from corral.core.job import Workload
from corral.sdk.submit.own_modules import first_party


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


def value_of(data: bytes, workload: str = Workload.PYTHON, *, job_id: str = "") -> Any:
    """The value a function returned; scripts return none. What is not code has a result in JSON,
    whatever its worker says."""
    if is_pickled(workload):
        try:
            return _Unpickler(data).load()
        except MemoryError:
            raise
        except Exception as error:  # a class of any library has its own way to refuse
            raise JobError(_why_not(error, job_id), job_id=job_id or None) from error
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise JobError(
            f"The job's result is no JSON ({error}): its worker says nothing that can be read. Its "
            "artifacts are there; `corral retry` runs it again.",
            job_id=job_id or None,
        ) from None


_LACKING = re.compile(r"Can't get attribute '([^']+)' on <module '([\w.]+)'")


def _why_not(error: Exception, job_id: str) -> str:
    """Of a result that cannot be made here: what is missing, and what to do."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        because = f"it needs the module {error.name!r}, which is not installed here"
        todo = "Install in this environment what the job had"
    elif (found := _LACKING.search(str(error))) and first_party(found[2]):
        because = f"it needs {found[1]!r} of your {found[2]}, which this program has without it"
        todo = f"If you have changed {found[2]} since it was loaded, start the program again"
    else:
        what = f"it needs {found[1]!r} of {found[2]}" if found else _told(error)
        because = f"{what}. A library may be of another version here than on the worker"
        todo = "Install here the version that the job had"
    asked = f"client.job({job_id!r}).result()" if job_id else "ask for the result again"
    job = f"Job {job_id}" if job_id else "The job"
    return (
        f"{job} succeeded, and its result cannot be made here: {because}. {todo}; the result is "
        f"kept: {asked}."
    )


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(".: ")


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
