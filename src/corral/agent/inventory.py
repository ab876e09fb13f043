"""What this machine has: processors, memory, GPUs, labels. Told when the agent registers."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import assert_never

import psutil

from corral.core.errors import InvalidSettings
from corral.core.images.backends import DiffusersEntry, Entry
from corral.core.job import Workload
from corral.core.worker import GPU, Capabilities, DeclaredGPU
from corral.runtime.environments import uv
from corral.settings import WorkerSettings

GIB = 1024**3
DIFFUSERS_EXTRA = ("torch", "transformers", "diffusers")
"""What the diffusers backend imports beyond Corral's own parts."""


def processor_ids(*, pins: bool = True) -> tuple[int, ...]:
    """The processors this process may use; empty where runners are not pinned to some."""
    if sys.platform == "linux" and pins:
        return tuple(sorted(os.sched_getaffinity(0)))
    return ()


def processors() -> float:
    return float(len(processor_ids()) or os.cpu_count() or 1)


def declared_gpus(declared: tuple[DeclaredGPU, ...]) -> tuple[GPU, ...]:
    """GPUs of the settings. Jobs are shown them by these ids, so they are the driver's."""
    gpus = tuple(
        GPU(
            uuid=gpu.id or str(index),
            name=gpu.name,
            vram_gb=gpu.vram_gb,
            vendor="declared",
            tflops=gpu.tflops,
        )
        for index, gpu in enumerate(declared)
    )
    ids = [gpu.uuid for gpu in gpus]
    for index, name in enumerate(ids):
        if name in ids[:index]:
            raise InvalidSettings(
                f"worker.gpus: two GPUs have the id {name!r} (without one, a GPU's id is its place "
                "in the list, from 0). Give each its own."
            )
    return gpus


def lacking(entry: Entry) -> list[str]:
    """Packages that a backend needs and that are not installed here. Nothing is imported."""
    needed = DIFFUSERS_EXTRA if isinstance(entry, DiffusersEntry) else ()
    return [name for name in needed if find_spec(name) is None]


def usable(backends: Sequence[Entry]) -> tuple[Entry, ...]:
    return tuple(entry for entry in backends if not lacking(entry))


def memory_gb(settings: WorkerSettings) -> float:
    return settings.memory_gb or round(psutil.virtual_memory().total / GIB, 1)


def _accepts(settings: WorkerSettings, workload: Workload) -> bool:
    match workload:
        case Workload.PYTHON:
            return settings.allow_code
        case Workload.PIPELINE:
            return bool(usable(settings.backends))
        case _:
            assert_never(workload)


def capabilities(
    settings: WorkerSettings,
    detected: tuple[GPU, ...] = (),
    *,
    output_path: str = "",
) -> Capabilities:
    return Capabilities(
        cpus=settings.cpus or processors(),
        memory_gb=memory_gb(settings),
        # Declared ones stand in where the driver names none; beside those they would be the same
        # cards again.
        gpus=detected or declared_gpus(settings.gpus),
        labels=settings.labels,
        workloads=tuple(one for one in Workload if _accepts(settings, one)),
        platform=platform.system().lower(),
        python=uv.own_minor(),
        reserved_for=settings.reserved_for,
        weight=settings.weight,
        suits=settings.class_,
        read_paths=settings.read_paths,
        model_paths=settings.model_paths,
        output_path=output_path,
        extends=True,
    )
