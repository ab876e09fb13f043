"""The workers of all engines. A machine that several of them reach is one worker, with one
capacity; each attempt goes through one of them. An engine that fails is silent, and asked again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

import structlog
from msgspec.structs import replace

from corral.core.events import EngineReport
from corral.core.job import Head, JobId, Shape
from corral.core.worker import Worker
from corral.engines.engine import Engine, Extendable
from corral.engines.posted import Posted
from corral.scheduler.fit import refuse_ever

log = structlog.get_logger()

ENGINE_PAUSE_S = 1.0


class Fleet:
    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self.engines = engines
        """In the order of the settings: the first that can run a job there does."""
        self.only = next(iter(engines)) if len(engines) == 1 else ""
        """The engine, where there is no other."""
        self.silent: dict[str, str] = {}
        """Engines that could not be asked what runs, and why, as long as that is so."""

    def workers(self) -> list[Worker]:
        """Every known worker of every engine, asleep or not."""
        if self.only:
            return list(self.engines[self.only].workers())
        reached: dict[str, list[Worker]] = {}
        for engine in self.engines.values():
            for worker in engine.workers():
                reached.setdefault(worker.id, []).append(worker)
        return [one[0] if len(one) == 1 else _as_one(one) for one in reached.values()]

    def reaching(self, worker: str) -> list[Engine]:
        return [
            engine
            for engine in self.engines.values()
            if any(one.id == worker for one in engine.workers())
        ]

    async def stop(self, head: Head, *, grace_s: float, unbegun: bool = False) -> None:
        """Asks for the end of the job's attempt, or for it back where it has not begun."""
        engine = self.engines.get(head.engine)
        if engine is not None:
            await engine.stop(head.id, head.attempt, grace_s=grace_s, unbegun=unbegun)

    def extends(self, head: Head) -> bool:
        """Whether whoever runs the job's attempt can be told that it may run longer."""
        engine = self.engines.get(head.engine)
        if isinstance(engine, Posted):
            return True
        return isinstance(engine, Extendable) and any(
            one.capabilities.extends for one in engine.workers() if one.id == head.worker
        )

    def extend(self, head: Head) -> None:
        """Tells whoever runs the job's attempt how long it may run now."""
        engine = self.engines.get(head.engine)
        if isinstance(engine, Posted):
            engine.mailbox.wake(head.id, head.attempt)
        elif isinstance(engine, Extendable):
            engine.extend(head.id, head.attempt, head.duration_s)

    def through(self, worker: str, shape: Shape) -> str:
        """The engine by which such work gets to this worker: the first that has all of what it
        needs there, and may have it now."""
        able: dict[int, str] = {}
        for name, engine in self.engines.items():
            for one in engine.workers():
                if one.id == worker and shape.workload in one.capabilities.workloads:
                    lacks = refuse_ever(shape, one) is not None
                    able.setdefault(2 * lacks + (not one.takes_work), name)
        return able[min(able)] if able else ""

    # --- what engines say ---

    async def reports(self, engine: Engine) -> AsyncIterator[Sequence[EngineReport]]:
        """Until the engine fails: that ends no attempt, and it is asked again."""
        events = engine.events()
        while True:
            try:
                reports = await anext(events)
            except Exception as error:
                await self._troubled(engine.name, error)
                return
            self.silent.pop(engine.name, None)
            yield reports

    async def running(self, engine: Engine) -> set[tuple[JobId, int]]:
        while True:
            try:
                running = set(await engine.running())
            except Exception as error:
                await self._troubled(engine.name, error)
            else:
                self.silent.pop(engine.name, None)
                return running

    async def _troubled(self, name: str, error: Exception) -> None:
        if name not in self.silent:
            log.error("engine_failed", engine=name, exc_info=error)
        self.silent[name] = f"The engine {name} cannot be asked now: {error}"
        await asyncio.sleep(ENGINE_PAUSE_S)

    def trouble(self) -> dict[str, str]:
        said = {name: one.trouble or self.silent.get(name) for name, one in self.engines.items()}
        return {name: trouble for name, trouble in said.items() if trouble}


def _as_one(reached: Sequence[Worker]) -> Worker:
    """What the first engine that has it connected sees, and the work that any of those takes."""
    there = [worker for worker in reached if worker.connected] or reached
    can = there[0].capabilities
    return replace(
        there[0],
        draining=any(worker.draining for worker in there),
        local=any(worker.local for worker in reached),
        left=all(worker.left for worker in reached),
        capabilities=replace(
            can,
            # None of them knows what the others hold, so what waits, waits here.
            ahead=min(worker.capabilities.ahead for worker in reached),
            gpus=max((worker.capabilities.gpus for worker in there), key=len),
            labels=_all(worker.capabilities.labels for worker in there),
            workloads=_all(worker.capabilities.workloads for worker in there),
            task_types=_all(worker.capabilities.task_types for worker in there),
        ),
    )


def _all(words: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for some in words for word in some))
