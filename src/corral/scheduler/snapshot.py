"""What goes into a decision and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from corral.core.job import JobId, Shape
from corral.core.worker import Worker
from corral.scheduler.circuit import CLOSED, Circuit
from corral.scheduler.fit import Held


class Waiting(Struct, frozen=True, gc=False):
    job: JobId
    seq: int
    """Its place (`Head.place`), kept through retries; below zero if it was moved to the front."""
    since: float
    attempt: int
    """The number of its last attempt."""


class Line(Struct, frozen=True, gc=False):
    """The front of the queue of one shape."""

    shape: Shape
    waiting: tuple[Waiting, ...]
    typical_s: float = 0.0
    paces: Mapping[str, tuple[float, float]] = {}
    """By worker: how long such work took there, and when it last did."""


class Seat(Struct, frozen=True, gc=False):
    worker: Worker
    held: tuple[Held, ...] = ()
    circuit: Circuit = CLOSED

    def present(self, now: float) -> bool:
        """Whether it takes anything at all."""
        if not self.worker.takes_work:
            return False
        return self.circuit is CLOSED or not self.circuit.closed_to(now, self.attempts)

    @property
    def attempts(self) -> int:
        return sum(held.count for held in self.held)

    def on_probe(self, now: float) -> bool:
        """Whether it takes one job and no other."""
        return self.circuit is not CLOSED and self.circuit.is_half_open(now)


class Snapshot(Struct, frozen=True):
    now: float
    lines: tuple[Line, ...]
    seats: tuple[Seat, ...]
    aging_s: float = 60.0
    last_aged_at: float = 0.0
    keep_for_interactive: int = 0
    """How many of the strongest workers batch leaves free."""


class Placement(Struct, frozen=True, gc=False):
    job: JobId
    attempt: int
    worker: str
    why: str
    ahead: bool = False


class Plan(Struct, frozen=True):
    placements: tuple[Placement, ...] = ()
    overdue: JobId | None = None
    """The job that has waited longest and too long: placed now, or a worker is kept for it."""
    turn: bool = False
    kept: str = ""
    """The worker that is kept for it."""
