"""What `__main__` is while a function runs: as much of the caller's program as came along.

Functions and classes of a program, a notebook or a console arrive by value. Whoever pickles them
inside the job, for a pool of processes above all, names them as `__main__.…`, as at home: there
they are found. A process that multiprocessing starts anew runs the file of its parent's `__main__`
first; the one that it is told of here brings the same functions and classes.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import cloudpickle
from cloudpickle import cloudpickle as tracked

OWN = sys.modules.get("__main__")
NAME = "__main__"
_FILE = "__corral_file__"


class CallersMain(ModuleType):
    def __init__(self, names: dict[str, Any]) -> None:
        super().__init__(NAME)
        self.__dict__.update(names)

    @property
    def __file__(self) -> str:  # type: ignore[override]
        """Written when it is asked for, which few do."""
        known: str = self.__dict__.get(_FILE, "")
        if not os.path.exists(known):
            known = self.__dict__[_FILE] = _written(self.names())
        return known

    def names(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not _is_of_modules(name)}


def main_of(function: Any) -> CallersMain | None:
    """None where nothing of it is of `__main__`."""
    names: dict[str, Any] = {}
    for found in _parts(function):
        names |= _names(found)
    return CallersMain(names) if names else None


def with_classes(main: CallersMain | None) -> CallersMain | None:
    """And what arguments have brought: classes, whose instances they hold."""
    classes = {
        cls.__name__: cls
        for cls in list(tracked._DYNAMIC_CLASS_TRACKER_BY_ID.values())
        if cls.__module__ == NAME and cls.__qualname__ == cls.__name__
    }
    if not classes:
        return main
    return CallersMain({**classes, **(main.names() if main is not None else {})})


def enter(main: CallersMain | None) -> None:
    found = OWN if main is None else main
    if found is not None and sys.modules.get(NAME) is not found:
        sys.modules[NAME] = found


def brought(path: str) -> dict[str, Any]:
    """For a process that was started anew: the names of its parent's `__main__`."""
    with open(path, "rb") as file:
        names: dict[str, Any] = pickle.load(file)  # noqa: S301 - of this job, for itself
    return names


def _written(names: dict[str, Any]) -> str:
    folder = tempfile.mkdtemp(prefix="corral-main-")
    data, file = os.path.join(folder, "names"), os.path.join(folder, "main.py")
    with open(data, "wb") as target:
        target.write(_pickled(names))
    with open(file, "w", encoding="utf-8") as program:
        program.write(f"from {__name__} import brought\nglobals().update(brought({data!r}))\n")
    return file


def _pickled(names: dict[str, Any]) -> bytes:
    try:
        return bytes(cloudpickle.dumps(names))
    except Exception:  # some global holds by now what no process can give to another
        made = {name: one for name, one in names.items() if isinstance(one, FunctionType | type)}
        return bytes(cloudpickle.dumps(made))


def _parts(value: Any) -> Iterator[Any]:
    """The functions and classes that a callable is made of."""
    if isinstance(value, partial):
        for one in (value.func, *value.args, *value.keywords.values()):
            yield from _parts(one)
    elif isinstance(value, MethodType):
        yield from (value.__func__, type(value.__self__))
    elif isinstance(value, FunctionType | type):
        yield value
        if (wrapped := getattr(value, "__wrapped__", None)) is not None:
            yield from _parts(wrapped)
    else:
        yield type(value)


def _names(found: Any) -> dict[str, Any]:
    if getattr(found, "__module__", None) != NAME:
        return {}
    functions = [found] if isinstance(found, FunctionType) else list(vars(found).values())
    names: dict[str, Any] = {}
    for one in functions:
        if isinstance(one, FunctionType) and one.__module__ == NAME:
            names |= one.__globals__
    names = {name: value for name, value in names.items() if not _is_of_modules(name)}
    return {**names, found.__name__: found} if found.__qualname__ == found.__name__ else names


def _is_of_modules(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
