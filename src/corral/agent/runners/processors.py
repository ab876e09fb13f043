"""Which processors a runner is pinned to, so that neighbours do not share one needlessly."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from corral.agent import system


class Processors:
    """Counts the busy runners on each processor. Pinning is a limit on processors that needs no
    privileges; where the platform has none, everything here is a no-op."""

    def __init__(self, ids: Sequence[int], here: Callable[[], int] | None = None) -> None:
        self._load = dict.fromkeys(ids, 0)
        self.here = here or system.own_processor()
        """The agent's own one. A runner is best there: the two take turns, and whoever talks to
        the agent has another one for itself."""

    def count(self, cpus: float) -> int:
        """How many processors `cpus` pins to; 0 when that is all of them."""
        wanted = math.ceil(cpus - 1e-9)
        return wanted if wanted < len(self._load) else 0

    def choose(self, count: int) -> tuple[int, ...]:
        """The least busy ones, and of those our own."""
        here = self.here()
        ranked = sorted(self._load, key=lambda cpu: (self._load[cpu], cpu != here, cpu))
        return tuple(sorted(ranked[:count]))

    def crowded(self, ids: tuple[int, ...]) -> bool:
        """Whether others are busy there while there are processors where nobody is."""
        load = self._load
        for cpu in ids:
            if load[cpu]:
                return sum(1 for busy in load.values() if not busy) >= len(ids)
        return False

    def take(self, ids: tuple[int, ...]) -> None:
        for cpu in ids:
            self._load[cpu] += 1

    def give(self, ids: tuple[int, ...]) -> None:
        for cpu in ids:
            self._load[cpu] -= 1
