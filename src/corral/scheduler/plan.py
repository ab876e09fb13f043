"""The decision: a snapshot of what waits and what is free goes in, a plan comes out.

Waiting jobs of one shape form one line, and a line that fits nowhere is left after one look, so
what a decision costs does not depend on how long the lines are.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from corral.core.job import QueueClass, Shape
from corral.scheduler.columns import Columns
from corral.scheduler.rooms import Rooms
from corral.scheduler.snapshot import Line, Placement, Plan, Seat, Snapshot, Waiting

__all__ = ["Line", "Placement", "Plan", "Seat", "Snapshot", "Waiting", "decide", "decide_plainly"]

CLASS_ORDER = {QueueClass.INTERACTIVE: 0, QueueClass.BATCH: 1}

MIN_COLUMNS = 8
"""From so many workers on it is quicker to ask all of them at once."""


A = TypeVar("A")
"""Whoever can run a shape."""


class Workers(Protocol[A]):
    """The workers of a decision: Rooms or Columns, which changes nothing but the cost."""

    def could(self, shape: Shape) -> bool: ...
    def able(self, line: Line, *, turn: bool = False) -> A: ...
    def keep(self, line: Line, able: A) -> str: ...
    def search(self, line: Line, able: A, begin: int = 0) -> Iterator[Placement]:
        """The placements of a line's jobs, one after the other, as long as there is room. Each is
        looked for when it is asked for, and no more are asked for than wait there."""

    def turn(self, line: Line, able: A) -> Placement | None:
        """Of the line's first job, which has waited too long."""


def decide(world: Snapshot) -> Plan:
    """The same snapshot gives the same plan on any machine."""
    if len(world.seats) < MIN_COLUMNS:
        return decide_plainly(world)
    return decide_among(Columns(world), world)


def decide_plainly(world: Snapshot) -> Plan:
    """The same plan, worker by worker."""
    return decide_among(Rooms(world), world)


def decide_among(workers: Workers[A], world: Snapshot) -> Plan:
    placements: list[Placement] = []
    overdue = _oldest_overdue(workers, world)
    turn: Placement | None = None
    kept = ""
    if overdue is not None:
        able = workers.able(overdue, turn=True)
        turn = workers.turn(overdue, able)
        if turn is not None:
            placements.append(turn)
        elif able:
            # Always the same worker takes nothing else, so that it really empties.
            kept = workers.keep(overdue, able)
    lines, heads = world.lines, _heads(world.lines)
    searches: dict[int, Iterator[Placement]] = {}
    while heads:
        rank, _, number, index = heads[0]
        line = lines[number]
        if index:
            placement = next(searches[number], None)
        else:
            placed = overdue is line and turn is not None
            searches[number] = search = workers.search(line, workers.able(line), int(placed))
            placement = turn if placed else next(search, None)
        if placement is None:
            heapq.heappop(heads)  # the rest of the line has the same shape
            continue
        if placement is not turn:
            placements.append(placement)
        index += 1
        if index < len(line.waiting):
            heapq.heapreplace(heads, (rank, line.waiting[index].seq, number, index))
        else:
            heapq.heappop(heads)
    return Plan(
        placements=tuple(placements),
        overdue=overdue.waiting[0].job if overdue else None,
        turn=turn is not None,
        kept=kept,
    )


def _heads(lines: Sequence[Line]) -> list[tuple[int, int, int, int]]:
    """The first of every line, by class, priority and order of submission, as a heap."""
    orders = [_order(line.shape) for line in lines]
    ranks = {order: rank for rank, order in enumerate(sorted(set(orders)))}
    heap = [
        (ranks[order], line.waiting[0].seq, n, 0)
        for n, (order, line) in enumerate(zip(orders, lines, strict=True))
        if line.waiting
    ]
    heapq.heapify(heap)
    return heap


def _order(shape: Shape) -> tuple[int, int]:
    return CLASS_ORDER[shape.queue_class], -shape.priority


def _oldest_overdue(workers: Workers[A], world: Snapshot) -> Line | None:
    """The line of the job that waited longest, if that waited too long and the last such turn is
    long ago."""
    if world.now - world.last_aged_at < world.aging_s:
        return None
    late = [
        line
        for line in world.lines
        if line.waiting and world.now - line.waiting[0].since >= world.aging_s
    ]
    late.sort(key=lambda line: line.waiting[0].seq)
    return next((line for line in late if workers.could(line.shape)), None)
