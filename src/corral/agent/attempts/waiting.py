"""Attempts that wait for room on this worker, and which of them goes next."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from corral.agent.attempts.attempt import HeldAttempt, Lane, Rank
from corral.core.worker import Capacity, Holding, stays_behind


class WaitingAttempts:
    """One lane for each set of needs: what does not fit once is not asked again for its
    neighbours."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, list[tuple[Rank, HeldAttempt]]] = {}
        self.size = 0

    def add(self, attempt: HeldAttempt) -> None:
        attempt.waiting = True
        self.size += 1
        lane = self._lanes.get(attempt.lane)
        if lane is None:
            lane = self._lanes[attempt.lane] = []
        heapq.heappush(lane, (attempt.rank, attempt))

    def drop(self, attempt: HeldAttempt) -> None:
        """Leaves its entry behind, to be skipped when its turn comes."""
        if attempt.waiting:
            attempt.waiting = False
            self.size -= 1

    def next(self, capacity: Capacity) -> tuple[HeldAttempt, Holding] | None:
        """Interactive before batch, then by priority, then by arrival, as far as there is room.
        What does not fit holds up those behind it, by the rule that the scheduler reckons with."""
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
