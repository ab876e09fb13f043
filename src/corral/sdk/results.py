"""What a job returned, as a value.

This is the only place of the whole system that unpickles what a job produced.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from typing import Any, assert_never

import cloudpickle

from corral.core.errors import JobError
from corral.core.job import Workload


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
        return _unpickled(data)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise JobError(
            f"The job's result is no JSON ({error}): its worker says nothing that can be read. Its "
            "artifacts are there; `corral retry` runs it again."
        ) from None


def _unpickled(data: bytes) -> Any:
    try:
        return _Unpickler(data).load()
    except (ImportError, AttributeError) as error:
        missing = getattr(error, "name", None) if isinstance(error, ImportError) else None
        what = f"the module {missing!r}, which is not installed here" if missing else str(error)
        raise JobError(
            f"The job succeeded, and its result cannot be made here: it needs {what}. Install in "
            "this environment what the job had, and ask for the result again: it is kept."
        ) from error


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
