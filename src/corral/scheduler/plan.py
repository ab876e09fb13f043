"""The decision: a snapshot of what waits and what is free goes in, a plan comes out.

Waiting jobs of one shape form one line, and a line that fits nowhere is left after one look, so
what a decision costs does not depend on how long the lines are.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from corral.core.job import QueueClass, Shape
from corral.scheduler.columns import Columns
from corral.scheduler.rooms import Rooms
from corral.scheduler.snapshot import Line, Placement, Plan, Search, Seat, Snapshot, Waiting

__all__ = ["Line", "Placement", "Plan", "Seat", "Snapshot", "Waiting", "decide"]

CLASS_ORDER = {QueueClass.INTERACTIVE: 0, QueueClass.BATCH: 1}

MANY = 8
"""From so many workers on it is quicker to ask all of them at once."""


MOST_AHEAD = 1_000
"""What one decision sends ahead at most. Free slots are filled by it, all of them; what only waits
on a worker may as well be sent by the next decision, which follows at once."""

Places = Callable[[tuple[Waiting, bool]], Placement | None]

A = TypeVar("A")
"""Whoever can run a shape."""


class Workers(Protocol[A]):
    """The workers of a decision: Rooms or Columns, which changes nothing but the cost."""

    def could(self, shape: Shape) -> bool: ...
    def able(self, line: Line, *, turn: bool = False) -> A: ...
    def keep(self, line: Line, able: A) -> str: ...
    def search(self, line: Line, able: A, *, turn: bool = False) -> Search: ...


def decide(world: Snapshot) -> Plan:
    """The same snapshot gives the same plan on any machine."""
    if len(world.seats) < MANY:
        return decide_among(Rooms(world), world)
    return decide_among(Columns(world), world)


def decide_among(workers: Workers[A], world: Snapshot) -> Plan:
    placements: list[Placement] = []
    overdue = _oldest_overdue(workers, world)
    turn: Placement | None = None
    kept = ""
    if overdue is not None:
        line, waiting = overdue
        able = workers.able(line, turn=True)
        turn = _begun(workers.search(line, able, turn=True))((waiting, False))
        if turn is not None:
            placements.append(turn)
        elif able:
            # Always the same worker takes nothing else, so that it really empties.
            kept = workers.keep(line, able)
    heads = _heads(world.lines)
    places: dict[int, Places] = {}
    ahead = MOST_AHEAD
    while heads:
        order, _, number, index = heads[0]
        line = world.lines[number]
        waiting = line.waiting[index]
        if index == 0:
            places[number] = _begun(workers.search(line, workers.able(line)))
        if turn is None or waiting.job != turn.job:
            placement = places[number]((waiting, ahead > 0))
            if placement is None:
                heapq.heappop(heads)  # the rest of the line has the same shape
                continue
            placements.append(placement)
            if placement.ahead:
                ahead -= 1
        index += 1
        if index < len(line.waiting):
            heapq.heapreplace(heads, (order, line.waiting[index].seq, number, index))
        else:
            heapq.heappop(heads)
    return Plan(
        placements=tuple(placements),
        overdue=overdue[1].job if overdue else None,
        turn=turn is not None,
        kept=kept,
    )


def _begun(search: Search) -> Places:
    next(search)
    return search.send


def _heads(lines: Sequence[Line]) -> list[tuple[tuple[int, int], int, int, int]]:
    """The first of every line, by class, priority and order of submission, as a heap."""
    heap = [
        ((CLASS_ORDER[line.shape.queue_class], -line.shape.priority), line.waiting[0].seq, n, 0)
        for n, line in enumerate(lines)
        if line.waiting
    ]
    heapq.heapify(heap)
    return heap


def _oldest_overdue(workers: Workers[A], world: Snapshot) -> tuple[Line, Waiting] | None:
    """The job that waited longest, if it waited too long and the last such turn is long ago."""
    if world.now - world.last_aged_at < world.aging_s:
        return None
    late = [
        line
        for line in world.lines
        if line.waiting and world.now - line.waiting[0].since >= world.aging_s
    ]
    late.sort(key=lambda line: line.waiting[0].seq)
    return next(((line, line.waiting[0]) for line in late if workers.could(line.shape)), None)
