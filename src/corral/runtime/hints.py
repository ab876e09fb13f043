"""What to do next, for exceptions with a cause outside of the job: files, memory, modules."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from corral.runtime.failures import OUT_OF_MEMORY_TYPES, type_name

GIB = 1024**3
KINDS = (PermissionError, MemoryError, ModuleNotFoundError)


class Bounds(NamedTuple):
    """What was left to this process: by default everything."""

    memory_bytes: int = 0
    files: bool = False
    reads: Sequence[str] = ()
    writes: Sequence[str] = ()


def add(message: str, error: BaseException, bounds: Bounds) -> str:
    """The message of an exception of one of these kinds, and what to do about it."""
    try:
        hint = _hint(error, bounds)
    except BaseException:  # It is user code's, and may raise at any look.
        hint = ""
    if not hint:
        return message
    return f"{message.rstrip('.')}. {hint}" if message else hint


def _hint(error: BaseException, bounds: Bounds) -> str:
    if isinstance(error, PermissionError):
        if bounds.files and isinstance(error.filename, str | bytes):
            return _about_path(os.fsdecode(error.filename), bounds)
    elif isinstance(error, MemoryError):
        if type_name(type(error)) not in OUT_OF_MEMORY_TYPES:  # Those speak of a GPU's memory.
            return _about_memory(bounds)
    elif isinstance(error, ModuleNotFoundError) and error.name:
        return _about_module(error.name.partition(".")[0])
    return ""


def add_requirement(package: str) -> str:
    return (
        f"Add {package} to requirements=[…], or, for a module of your own, register it with "
        "cloudpickle.register_pickle_by_value or submit its folder."
    )


def _about_module(top: str) -> str:
    # One that is there, or belongs to another platform's Python, no requirement would bring.
    return "" if top in sys.modules or top in sys.stdlib_module_names else add_requirement(top)


def _about_memory(bounds: Bounds) -> str:
    if bounds.memory_bytes:
        limit = round(bounds.memory_bytes / GIB, 3)
        return f"The job ran out of memory: it had memory_gb={limit:g}. Submit it with more."
    return "The job ran out of memory: it had no limit of its own, the machine had no more."


def _about_path(path: str, bounds: Bounds) -> str:
    """Empty where the sandbox allows the path: then it is the machine's own permissions."""
    real = os.path.realpath(path)
    if _inside(real, bounds.writes):
        return ""
    if not _inside(real, bounds.reads):
        return (
            "Jobs see only their own folder and the system's: put the path into worker.read_paths "
            "(or worker.write_paths) of the worker's corral.yaml, or send the file along."
        )
    if not (os.access(real, os.W_OK) or os.access(os.path.dirname(real), os.W_OK)):
        return ""
    return (
        "Jobs may read there but not write: use the job's own folder, or put the path into "
        "worker.write_paths of the worker's corral.yaml."
    )


def _inside(path: str, folders: Iterable[str]) -> bool:
    return any(
        path == folder or path.startswith(os.path.join(folder, ""))
        for folder in map(os.path.realpath, folders)
    )
