"""The attempts that this worker answers for, and what those that run hold of it."""

from __future__ import annotations

import asyncio

from corral.agent.attempt import Attempt
from corral.agent.phases import Step
from corral.agent.runner_process import Runner
from corral.agent.waiting import Waiting
from corral.core.job import JobId
from corral.core.worker import Capabilities, Capacity, Holding

ENOUGH_AHEAD = 16
"""With so many attempts here that can start without another word, the connection may batch."""


class Roll:
    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.capacity = Capacity(capabilities)
        self.known: dict[tuple[JobId, int], Attempt] = {}
        self.waiting = Waiting()
        self.running: dict[tuple[JobId, int], Attempt] = {}
        """Those that hold something, until it is free again."""
        self.active: dict[Runner, None] = {}
        """Runners with attempts, in the order they got their first."""
        self.draining = ""
        """Why nothing new is taken; empty: it is."""
        self._quiet = asyncio.Event()

    def add(self, attempt: Attempt) -> None:
        self.known[attempt.key] = attempt

    def prepared(self, attempt: Attempt) -> None:
        """Nothing but room is missing."""
        attempt.step(Step.PREPARED)
        self.waiting.add(attempt)

    def forget(self, attempt: Attempt) -> None:
        """It is over, or goes back."""
        self.waiting.drop(attempt)
        del self.known[attempt.key]
        attempt.step(Step.ENDS)

    def take(self, attempt: Attempt, holding: Holding) -> None:
        attempt.holding = holding
        self.running[attempt.key] = attempt

    def release(self, attempt: Attempt) -> None:
        """What it held is free."""
        assert attempt.holding is not None
        self.capacity.give(attempt.holding)
        del self.running[attempt.key]
        if not self.running and not self.waiting.size:
            self._quiet.set()

    def unbegun(self) -> list[Attempt]:
        """Those that no runner has."""
        return [attempt for attempt in self.known.values() if attempt.runner is None]

    def has_work_ahead(self) -> bool:
        ahead = sum(len(runner.orders) - 1 for runner in self.active)
        return self.waiting.size + ahead >= ENOUGH_AHEAD

    def load(self) -> float:
        total = self.capabilities.cpus
        return round((total - self.capacity.cpus) / total, 3) if total else 0.0

    def offer(self, capabilities: Capabilities) -> None:
        """This machine turned out to have more GPUs."""
        self.capabilities = capabilities
        self.capacity.gpus = capabilities.gpus
        for gpu in capabilities.gpus:
            self.capacity.tenths.setdefault(gpu.uuid, 10)

    async def until_quiet(self) -> None:
        """Until nothing runs."""
        while self.running:
            self._quiet.clear()
            await self._quiet.wait()
