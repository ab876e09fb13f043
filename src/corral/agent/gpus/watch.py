"""A look at the GPUs every few seconds: what we and others hold, how warm and busy they are.

The driver is asked in a thread. One that hangs keeps that thread and nothing else; what was last
seen then stays. Each trouble is said once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import psutil
import structlog

from corral.agent.gpus.nvidia import DriverAway, SeenGpu
from corral.agent.system import beside
from corral.core.worker import GPU, Reading, taken_by_others

log = structlog.get_logger("corral.agent.gpus")

EVERY_S, SELDOM_S = 2.0, 60.0
"""The second where there is no GPU yet: its driver may be loaded late."""
WITHIN_S = 10.0
"""A driver that takes longer hangs."""
UNNOTICED_GB = 0.5
"""What a driver uses without any process."""

Lines = Mapping[int, frozenset[int] | None]
"""By process that uses a GPU: itself and all it descends from; None where it is not to be found."""


class Tenant(NamedTuple):
    """A runner of ours that has GPUs."""

    pid: int
    devices: tuple[str, ...]
    busy: bool
    """It runs an attempt; a warm one only keeps what the last one left."""


class Driver(Protocol):
    def look(self) -> list[SeenGpu]: ...


class GpuWatch:
    def __init__(
        self,
        driver: Driver,
        *,
        ours: Callable[[], Sequence[Tenant]],
        changed: Callable[[], None],
        found: Callable[[tuple[GPU, ...]], None],
        servers: Callable[[], Collection[int]] = lambda: (),
        within_s: float = WITHIN_S,
    ) -> None:
        self._driver = driver
        self._ours = ours
        self._servers = servers
        """Processes that serve our jobs though we did not start them; asked in the thread."""
        self._changed = changed
        """Told when others hold more or less than before."""
        self._found = found
        """Told of GPUs where there were none before."""
        self._within_s = within_s
        self._gpus: tuple[GPU, ...] = ()
        self._looking: asyncio.Future[tuple[list[SeenGpu], Lines]] | None = None
        self._told = ""
        self._missing: set[str] = set()
        self._guesses: dict[str, Guess] = {}
        self._last: dict[str, float] = {}
        self.readings: tuple[Reading, ...] = ()
        self.taken: tuple[tuple[str, float], ...] = ()

    async def first(self) -> tuple[GPU, ...]:
        """The GPUs of this machine; none where there is no driver, or one that hangs."""
        looked = await self._look()
        if looked is None:
            return ()
        seen, lines = looked
        self._read(seen, lines, ())
        self.taken = taken_by_others(self.readings)
        self._gpus = tuple(one.gpu for one in seen)
        return self._gpus

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S if self._gpus else SELDOM_S)
            try:
                await self.look()
            except Exception as error:
                self._say("gpus_not_read", error=repr(error))

    async def look(self) -> None:
        """Once more, and whoever wants to know is told."""
        if not self._gpus:
            if gpus := await self.first():
                self._found(gpus)
            return
        before = self._ours()
        looked = await self._look()
        if looked is None:
            return
        seen, lines = looked
        # Who came or went while the driver was asked counts as ours, too.
        self._read(seen, lines, [*before, *self._ours()])
        self._miss({one.gpu.uuid for one in seen})
        taken = taken_by_others(self.readings)
        if taken != self.taken:
            self.taken = taken
            log.info("gpus_used_by_others", gb=dict(taken))
            self._changed()

    async def _look(self) -> tuple[list[SeenGpu], Lines] | None:
        if self._looking is None:
            self._looking = beside(self._ask, "gpus")
        await asyncio.wait({self._looking}, timeout=self._within_s)
        if not self._looking.done():
            self._say("gpu_driver_hangs", waited_s=self._within_s)
            return None
        looked, self._looking = self._looking, None
        try:
            return looked.result()
        except DriverAway as error:
            if self._gpus:
                self._say("gpu_driver_gone", error=str(error))
                return [], {}
        except Exception as error:
            self._say("gpu_driver_broken", error=repr(error))
        return None

    def _miss(self, seen: set[str]) -> None:
        """GPUs that are missing for the second time are lost: no job shall try them."""
        missing = {gpu.uuid for gpu in self._gpus} - seen
        if missing and seen:
            self._say("gpus_missing", gpus=sorted(missing))
        elif not missing:
            self._say("")
        lost = missing & self._missing
        self.readings += tuple(
            Reading(gpu.uuid, others_gb=gpu.vram_gb, lost=True)
            for gpu in self._gpus
            if gpu.uuid in lost
        )
        self._missing = missing

    def _say(self, what: str, **more: object) -> None:
        told = f"{what}{more}" if what else ""
        if told and told != self._told:
            log.error(what, **more)
        elif self._told and not told:
            log.info("gpu_driver_answers")
        self._told = told

    def _ask(self) -> tuple[list[SeenGpu], Lines]:
        """In the thread."""
        seen = self._driver.look()
        lines = {pid: line_of(pid) for one in seen for pid in one.processes}
        servers = self._servers() if lines else ()
        for pid, line in lines.items():
            if line is not None and not line.isdisjoint(servers):
                lines[pid] = line | {os.getpid()}
        return seen, lines

    def _read(self, seen: Sequence[SeenGpu], lines: Lines, ours: Sequence[Tenant]) -> None:
        self.readings = tuple(self._reading(one, lines, ours) for one in seen)

    def _reading(self, seen: SeenGpu, lines: Lines, ours: Sequence[Tenant]) -> Reading:
        uuid = seen.gpu.uuid
        here = [one for one in ours if uuid in one.devices]
        held, blind = held_by({os.getpid(), *(one.pid for one in ours)}, seen, lines)
        guess = self._guesses.setdefault(uuid, Guess())
        if here and blind:
            held = guess.held(seen.used_gb, busy=any(one.busy for one in here))
        theirs = max(seen.used_gb - held, 0.0)
        guess.theirs = theirs
        # What ends is a moment later in the books: only what lasts for two looks counts.
        counted = min(theirs, self._last.get(uuid, theirs))
        self._last[uuid] = theirs
        return Reading(
            uuid=uuid,
            free_gb=round(seen.free_gb, 1),
            ours_gb=round(held, 1),
            others_gb=round(counted, 1),
            temperature_c=seen.temperature_c,
            utilisation=seen.utilisation,
        )


class Guess:
    """Whose VRAM is whose, where the driver does not say: what changes while an attempt of ours has
    the GPU is ours, what changes while none has it is not."""

    def __init__(self) -> None:
        self.theirs = 0.0
        self._ours = 0.0
        self._was_busy = False

    def held(self, used_gb: float, *, busy: bool) -> float:
        if busy or self._was_busy:
            self._ours = max(used_gb - self.theirs, 0.0)
        self._was_busy = busy
        return min(self._ours, used_gb)


def held_by(ours: Collection[int], seen: SeenGpu, lines: Lines) -> tuple[float, bool]:
    """VRAM of our processes and those below them, and whether the driver leaves open whose is
    whose: on Windows it has no figures, in a container often no usable process ids."""
    held, blind = 0.0, not seen.processes and seen.used_gb > UNNOTICED_GB
    for pid, gb in seen.processes.items():
        line = lines.get(pid)
        if line is None or gb is None:
            blind = True
        elif not line.isdisjoint(ours):
            held += gb
    return held, blind


def line_of(pid: int) -> frozenset[int] | None:
    try:
        process = psutil.Process(pid)
        return frozenset({pid, *(parent.pid for parent in process.parents())})
    except psutil.NoSuchProcess:
        return None
    except psutil.Error:
        return frozenset({pid})
