"""Attempts that wait for room on this worker, and which of them goes next."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from corral.agent.attempt import Attempt, Lane, Rank
from corral.core.worker import Capacity, Holding

PASSED_S = 10.0
"""For this long smaller attempts may pass one that does not fit; then it comes first."""


class Waiting:
    """One lane for each set of needs: what does not fit once is not asked again for its
    neighbours."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, list[tuple[Rank, Attempt]]] = {}
        self._blocked_since: dict[Lane, float] = {}
        self.size = 0

    def add(self, attempt: Attempt) -> None:
        attempt.waiting = True
        self.size += 1
        lane = self._lanes.get(attempt.lane)
        if lane is None:
            lane = self._lanes[attempt.lane] = []
        heapq.heappush(lane, (attempt.rank, attempt))

    def drop(self, attempt: Attempt) -> None:
        """Leaves its entry behind, to be skipped when its turn comes."""
        if attempt.waiting:
            attempt.waiting = False
            self.size -= 1

    def next(self, capacity: Capacity, now: float) -> tuple[Attempt, Holding] | None:
        """Interactive before batch, then by priority, then by arrival, as far as there is room."""
        for lane, entries in self._ordered():
            attempt = entries[0][1]
            holding = capacity.fits(lane[0], above_vram_gb=lane[1])
            if holding is None:
                since = self._blocked_since.setdefault(lane, now)
                if now - since > PASSED_S:
                    return None
                continue
            heapq.heappop(entries)
            self.drop(attempt)
            if self._blocked_since:
                self._blocked_since.pop(lane, None)
            return attempt, holding
        return None

    def _ordered(self) -> Iterator[tuple[Lane, list[tuple[Rank, Attempt]]]]:
        for lane, entries in list(self._lanes.items()):
            while entries and not entries[0][1].waiting:
                heapq.heappop(entries)
            if not entries:
                del self._lanes[lane]
                self._blocked_since.pop(lane, None)
        if len(self._lanes) < 2:
            return iter(self._lanes.items())
        return iter(sorted(self._lanes.items(), key=lambda item: item[1][0][0]))
