"""A fake. It speaks the functions of NVIDIA's pynvml that Corral uses, and shows cards that a file
describes. With this folder in PYTHONPATH a process finds it instead of the real one.
"""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace
from typing import Any

NVML_TEMPERATURE_GPU = 0
NVML_CLOCK_SM = 1
nvmlMemory_v2 = 33554472  # noqa: N816 - NVIDIA's name
GIB = 1024**3


class NVMLError(Exception):
    pass


def _state() -> dict[str, Any]:
    while True:
        with open(os.environ["NVIDIA_FAKE_STATE"], encoding="utf-8") as file:
            state: dict[str, Any] = json.load(file)
        if not state.get("hangs"):
            return state
        time.sleep(0.02)  # as long as the real one would


def _card(handle: int) -> dict[str, Any]:
    card: dict[str, Any] = _state()["cards"][handle]
    if card.get("lost"):
        raise NVMLError("GPU is lost")
    return card


def _told(card: dict[str, Any], what: str) -> Any:
    if card.get(what) is None:
        raise NVMLError("Not Supported")
    return card[what]


def nvmlInit() -> None:
    if gone := _state().get("gone"):
        raise NVMLError(gone)


def nvmlShutdown() -> None:
    pass


def nvmlSystemGetDriverVersion() -> str:
    return "a fake, no driver"


def nvmlDeviceGetCount() -> int:
    nvmlInit()
    return len(_state()["cards"])


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    _card(index)
    return index


def nvmlDeviceGetUUID(handle: int) -> str:
    return str(_card(handle)["uuid"])


def nvmlDeviceGetName(handle: int) -> str:
    return str(_card(handle)["name"])


def nvmlDeviceGetMemoryInfo(handle: int, version: int | None = None) -> SimpleNamespace:
    card = _card(handle)
    listed = sum(gb or 0.0 for gb in card["processes"].values())
    used = card.get("used_gb", listed)
    total = card["total_gb"]
    return SimpleNamespace(
        total=int(total * GIB), used=int(used * GIB), free=int((total - used) * GIB)
    )


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(pid=int(pid), usedGpuMemory=None if gb is None else int(gb * GIB))
        for pid, gb in _card(handle)["processes"].items()
    ]


def nvmlDeviceGetGraphicsRunningProcesses(handle: int) -> list[SimpleNamespace]:
    raise NVMLError("Not Supported")


def nvmlDeviceGetTemperature(handle: int, sensor: int) -> int:
    return int(_told(_card(handle), "temperature"))


def nvmlDeviceGetUtilizationRates(handle: int) -> SimpleNamespace:
    return SimpleNamespace(gpu=int(_told(_card(handle), "busy")), memory=0)


def nvmlDeviceGetNumGpuCores(device: int) -> int:
    return int(_told(_card(device), "cores"))


def nvmlDeviceGetMaxClockInfo(handle: int, type: int) -> int:
    return int(_told(_card(handle), "mhz"))
