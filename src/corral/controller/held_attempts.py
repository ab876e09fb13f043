"""What a worker holds, as a decision sees it. Short jobs wait there by the hundred: those that are
alike and came one after the other are one entry with a count, so a decision costs the same.
"""

from __future__ import annotations

from msgspec.structs import replace

from corral.core.job import JobId
from corral.scheduler.fit import Held


class Run:
    """Attempts that are alike; of those that have begun only one."""

    __slots__ = ("count", "held", "number")

    def __init__(self, number: int, held: Held) -> None:
        self.number, self.held, self.count = number, held, 1


class HeldAttempts:
    __slots__ = ("_last", "_next", "_of", "_runs")

    def __init__(self) -> None:
        self._of: dict[JobId, Run] = {}
        self._runs: dict[int, Run] = {}
        """In the order in which their first ones came."""
        self._last: Run | None = None
        """Of those that wait."""
        self._next = 0

    def __bool__(self) -> bool:
        return bool(self._of)

    def add(self, job: JobId, held: Held) -> None:
        self.remove(job)
        last = self._last
        if last is not None and held.follows(last.held):
            last.count += 1
            self._of[job] = last
            return
        self._of[job] = self._runs[self._next] = run = Run(self._next, held)
        self._next += 1
        if not held.started:  # where those that have begun stand among the others is all the same
            self._last = run

    def remove(self, job: JobId) -> None:
        run = self._of.pop(job, None)
        if run is None:
            return
        run.count -= 1
        if not run.count:
            del self._runs[run.number]
            if run is self._last:
                self._last = None

    def all(self) -> tuple[Held, ...]:
        return tuple(
            run.held if run.count == 1 else replace(run.held, count=run.count)
            for run in self._runs.values()
        )
