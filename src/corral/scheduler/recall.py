"""What was sent ahead to a busy worker and could begin at once on another: that one is asked back.

The question is put to `decide` itself, with those attempts among the waiting ones: so whatever
decides where a job may go decides here too, and nobody who waits is overtaken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from corral.core.job import JobId, Shape
from corral.scheduler.fit import Room
from corral.scheduler.plan import decide
from corral.scheduler.snapshot import Line, Plan, Snapshot, Waiting

MOST = 64
"""Attempts that are looked at on one worker: the next ones there."""


class Sent(NamedTuple):
    """An attempt that was sent and has not begun, by all we know."""

    job: JobId
    attempt: int
    shape: Shape
    seq: int
    """Its place when it waited."""
    since: float


def behind(room: Room, unbegun: Sequence[Sent]) -> Sequence[Sent]:
    """Those of a worker's unbegun attempts for which it has no room, the next ones first."""
    return unbegun[max(0, len(unbegun) - room.ahead) :][:MOST] if room.ahead else ()


def recalled(
    world: Snapshot,
    sent: Mapping[str, Sequence[Sent]],
    decide: Callable[[Snapshot], Plan] = decide,
) -> list[Sent]:
    """Who of those that wait on workers, by worker, would begin at once on another."""
    where = {one.job: (worker, one) for worker, there in sent.items() for one in there}
    lines = {line.shape: line for line in world.lines}
    for one in (one for there in sent.values() for one in there):
        line = lines.get(one.shape) or Line(one.shape, ())
        waiting = Waiting(one.job, one.seq, one.since, one.attempt)
        lines[one.shape] = replace(line, waiting=(*line.waiting, waiting))
    in_order = (
        replace(line, waiting=tuple(sorted(line.waiting, key=lambda waiting: waiting.seq)))
        for line in lines.values()
    )
    plan = decide(replace(world, lines=tuple(in_order)))
    found = []
    for placement in plan.placements:
        if not placement.ahead and placement.job in where:
            worker, one = where[placement.job]
            if placement.worker != worker:
                found.append(one)
    return found
