"""The attempts that this worker answers for, and what those that run hold of it."""

from __future__ import annotations

import asyncio

from corral.agent.attempts.attempt import HeldAttempt
from corral.agent.attempts.phases import PhaseStep
from corral.agent.attempts.waiting import WaitingAttempts
from corral.agent.runners.runner import Runner
from corral.core.job import JobId
from corral.core.worker import Capabilities, Capacity, Holding

ENOUGH_AHEAD = 16
"""With so many attempts here that can start without another word, the connection may batch."""


class Roll:
    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self.capacity = Capacity(capabilities)
        self.known: dict[tuple[JobId, int], HeldAttempt] = {}
        self.waiting = WaitingAttempts()
        self.running: dict[tuple[JobId, int], HeldAttempt] = {}
        """Those that hold something, until it is free again."""
        self.active: dict[Runner, None] = {}
        """Runners with attempts, in the order they got their first."""
        self.draining = ""
        """Why nothing new is taken; empty: it is."""
        self._quiet = asyncio.Event()

    def add(self, attempt: HeldAttempt) -> None:
        self.known[attempt.key] = attempt

    def prepared(self, attempt: HeldAttempt) -> None:
        """Nothing but room is missing."""
        attempt.step(PhaseStep.PREPARED)
        self.waiting.add(attempt)

    def forget(self, attempt: HeldAttempt) -> None:
        """It is over, or goes back."""
        self.waiting.drop(attempt)
        del self.known[attempt.key]
        attempt.step(PhaseStep.ENDS)

    def take(self, attempt: HeldAttempt, holding: Holding) -> None:
        attempt.holding = holding
        self.running[attempt.key] = attempt

    def release(self, attempt: HeldAttempt) -> None:
        """What it held is free."""
        assert attempt.holding is not None
        self.capacity.give(attempt.holding)
        del self.running[attempt.key]
        if not self.running and not self.waiting.size:
            self._quiet.set()

    def unbegun(self) -> list[HeldAttempt]:
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
