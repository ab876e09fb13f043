"""Asking one engine what it saw and what runs there. One that fails is silent, and asked again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import structlog

from corral.core.events import EngineReport
from corral.core.job import JobId
from corral.engines.engine import Engine

log = structlog.get_logger()

ENGINE_PAUSE_S = 1.0


class EngineReports:
    def __init__(self, engine: Engine, silent: dict[str, str]) -> None:
        self._engine, self._silent = engine, silent
        """The second: why engines cannot be asked now, by their names."""

    async def reports(self) -> AsyncIterator[Sequence[EngineReport]]:
        """Until the engine fails: that is silence, the end of nothing, and it is asked again."""
        events = self._engine.events()
        while True:
            try:
                reports = await anext(events)
            except Exception as error:
                await self._troubled(error)
                return
            self._silent.pop(self._engine.name, None)
            yield reports

    async def _troubled(self, error: Exception) -> None:
        name = self._engine.name
        if name not in self._silent:
            log.error("engine_failed", engine=name, exc_info=error)
        self._silent[name] = f"The engine {name} cannot be asked now: {error}"
        await asyncio.sleep(ENGINE_PAUSE_S)

    async def running(self) -> set[tuple[JobId, int]]:
        while True:
            try:
                running = set(await self._engine.running())
            except Exception as error:
                await self._troubled(error)
            else:
                self._silent.pop(self._engine.name, None)
                return running
