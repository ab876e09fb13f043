"""NVIDIA GPUs as their driver describes them: the only place that speaks NVML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any, TypeVar

from msgspec import Struct

from corral.agent.inventory import GIB
from corral.core.worker import GPU

FLOPS_PER_CORE = 2
"""A multiplication and an addition in each cycle."""

T = TypeVar("T")


class DriverAway(Exception):
    """There is no driver, or it does not answer any more."""


class SeenGpu(Struct, frozen=True):
    """One GPU at this moment."""

    gpu: GPU
    used_gb: float
    free_gb: float
    processes: Mapping[int, float | None]
    """VRAM in GB by process id; None where the driver does not tell whose it is."""
    temperature_c: float | None = None
    utilisation: float | None = None


class Nvml:
    """Calls may take long, or never come back: they belong into a thread."""

    def __init__(self, library: ModuleType | None = None) -> None:
        self._library: Any = library
        self._open = False
        self._tflops: dict[str, float] = {}

    def look(self) -> list[SeenGpu]:
        """All GPUs. One that does not answer is left out, as if it were not there."""
        if self._library is None:
            import pynvml

            self._library = pynvml
        library = self._library
        try:
            if not self._open:
                library.nvmlInit()
                self._open = True
            count = library.nvmlDeviceGetCount()
        except library.NVMLError as error:
            self.close()  # a driver that comes back wants to be opened anew
            raise DriverAway(str(error)) from None
        found = []
        for index in range(count):
            with suppress(library.NVMLError):
                found.append(self._seen(library.nvmlDeviceGetHandleByIndex(index)))
        return found

    def close(self) -> None:
        if self._open:
            self._open = False
            with suppress(self._library.NVMLError):
                self._library.nvmlShutdown()

    def _seen(self, handle: Any) -> SeenGpu:
        library = self._library
        before = self._memory(handle)
        processes = self._processes(handle)
        after = self._memory(handle)
        uuid = _text(library.nvmlDeviceGetUUID(handle))
        if uuid not in self._tflops:
            self._tflops[uuid] = self._speed(handle)
        version = self._ask(getattr(library, "nvmlSystemGetDriverVersion", str))
        gpu = GPU(
            uuid=uuid,
            name=_text(library.nvmlDeviceGetName(handle)),
            vram_gb=round(after.total / GIB, 1),
            tflops=self._tflops[uuid],
            driver=_text(version or ""),
        )
        temperature = self._ask(
            lambda: library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU)
        )
        busy = self._ask(lambda: library.nvmlDeviceGetUtilizationRates(handle).gpu)
        return SeenGpu(
            gpu=gpu,
            # A process that ended in between is no longer in the list, nor in the smaller of both.
            used_gb=min(before.used, after.used) / GIB,
            free_gb=after.free / GIB,
            processes=processes,
            temperature_c=None if temperature is None else float(temperature),
            utilisation=None if busy is None else busy / 100,
        )

    def _memory(self, handle: Any) -> Any:
        """Without what the driver keeps for itself, where it tells them apart."""
        library = self._library
        version = getattr(library, "nvmlMemory_v2", None)
        if version is not None:
            with suppress(library.NVMLError):
                return library.nvmlDeviceGetMemoryInfo(handle, version)
        return library.nvmlDeviceGetMemoryInfo(handle)

    def _processes(self, handle: Any) -> dict[int, float | None]:
        """Those that compute and those that draw; some do both."""
        library = self._library
        found: dict[int, float | None] = {}
        for ask in (
            library.nvmlDeviceGetComputeRunningProcesses,
            library.nvmlDeviceGetGraphicsRunningProcesses,
        ):
            for process in self._ask(ask, handle) or ():
                used = process.usedGpuMemory
                had = found.get(process.pid)
                found[process.pid] = had if used is None else max(had or 0.0, used / GIB)
        return found

    def _speed(self, handle: Any) -> float:
        """From its cores and their highest clock, so that no list of cards has to be kept."""
        library = self._library
        # An older library has no such question.
        cores = self._ask(getattr(library, "nvmlDeviceGetNumGpuCores", lambda _: None), handle)
        mhz = self._ask(library.nvmlDeviceGetMaxClockInfo, handle, library.NVML_CLOCK_SM)
        return round((cores or 0) * FLOPS_PER_CORE * (mhz or 0) / 1e6, 1)

    def _ask(self, question: Callable[..., T], *arguments: Any) -> T | None:
        """None where this card or this driver does not say."""
        try:
            return question(*arguments)
        except self._library.NVMLError:
            return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
