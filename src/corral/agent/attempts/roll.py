"""The attempts that this worker answers for: which goes next, and what the running ones hold."""

from __future__ import annotations

import asyncio
import heapq
from collections import defaultdict
from collections.abc import Iterator

from corral.agent.attempts.attempt import HeldAttempt, Lane, PhaseStep, Rank
from corral.agent.runners.runner import Runner
from corral.core.job import JobId
from corral.core.worker import Capabilities, Capacity, Holding, stays_behind

ENOUGH_AHEAD = 16
"""With so many attempts here that can start without another word, the connection may batch."""


class WaitingAttempts:
    """One lane for each set of needs: what does not fit is not asked again for its neighbours."""

    def __init__(self) -> None:
        self._lanes: defaultdict[Lane, list[tuple[Rank, HeldAttempt]]] = defaultdict(list)
        self.size = 0

    def add(self, attempt: HeldAttempt) -> None:
        attempt.waiting = True
        self.size += 1
        heapq.heappush(self._lanes[attempt.lane], (attempt.rank, attempt))

    def drop(self, attempt: HeldAttempt) -> None:
        """Leaves its entry behind, to be skipped when its turn comes."""
        if attempt.waiting:
            attempt.waiting = False
            self.size -= 1

    def next(self, capacity: Capacity) -> tuple[HeldAttempt, Holding] | None:
        """The first by rank that fits. What does not fit holds up others, as in the scheduler."""
        blocked = blocked_without_gpu = 0
        for lane, entries in self._ordered():
            needs, above_vram_gb = lane[0], lane[1]
            holding = None
            if not stays_behind(needs, blocked, blocked_without_gpu):
                holding = capacity.fits(needs, above_vram_gb=above_vram_gb)
            if holding is None:
                blocked += 1
                blocked_without_gpu += not needs.wants_gpu
                continue
            attempt = heapq.heappop(entries)[1]
            self.drop(attempt)
            return attempt, holding
        return None

    def next_like(self, other: HeldAttempt, document_limit: int) -> HeldAttempt | None:
        """The next one in order, if it could run in the same process as the other."""
        lane, entries = next(self._ordered(), (None, []))
        if lane != other.lane:
            return None
        attempt = entries[0][1]
        sent, before = attempt.dispatch, other.dispatch
        if (
            attempt.fresh
            or attempt.spec != other.spec
            or attempt.recipe.env != other.recipe.env
            or attempt.recipe.work != other.recipe.work
            or sent.secrets != before.secrets
            or attempt.owner != other.owner
            or len(sent.document) > document_limit
        ):
            return None
        heapq.heappop(entries)
        self.drop(attempt)
        return attempt

    def _ordered(self) -> Iterator[tuple[Lane, list[tuple[Rank, HeldAttempt]]]]:
        for lane, entries in list(self._lanes.items()):
            while entries and not entries[0][1].waiting:
                heapq.heappop(entries)
            if not entries:
                del self._lanes[lane]
        if len(self._lanes) < 2:
            return iter(self._lanes.items())
        return iter(sorted(self._lanes.items(), key=lambda item: item[1][0][0]))


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

    def prepared(self, attempt: HeldAttempt) -> None:
        """Nothing but room is missing."""
        attempt.step(PhaseStep.PREPARED)
        self.waiting.add(attempt)

    def forget(self, attempt: HeldAttempt) -> None:
        """It is over, or goes back."""
        self.waiting.drop(attempt)
        del self.known[attempt.key]
        attempt.step(PhaseStep.ENDS)

    def release(self, attempt: HeldAttempt) -> None:
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
