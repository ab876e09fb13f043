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
from corral.scheduler.fit import MOST_AHEAD, Room, could_run, refuse_ever
from corral.scheduler.rank import (
    NEUTRAL,
    Wanted,
    emptied,
    misfit,
    missing,
    preference,
    purpose,
    reason,
    standing,
    strongest,
)
from corral.scheduler.snapshot import Line, Placement, Plan, Seat, Snapshot, Waiting

__all__ = ["Line", "Placement", "Plan", "Seat", "Snapshot", "Waiting", "decide", "decide_plainly"]

MIN_COLUMNS = 8
"""From so many workers on it is quicker to ask all of them at once."""


A = TypeVar("A")
"""Whoever can run a shape."""


class Workers(Protocol[A]):
    """The workers of a decision: Rooms or Columns, which changes nothing but the cost."""

    def could(self, shape: Shape) -> bool:
        """Whether any known worker, asleep or not, could run it."""

    def able(self, line: Line, *, turn: bool = False) -> A: ...
    def keep(self, line: Line, able: A) -> str:
        """The first of them takes nothing else in this decision, or the best to load its models."""

    def search(self, line: Line, able: A, begin: int = 0) -> Iterator[Placement]:
        """The placements of a line's jobs, one after the other, as long as there is room. Each is
        looked for when it is asked for, and no more are asked for than wait there."""

    def turn(self, line: Line, able: A) -> Placement | None:
        """Of the line's first job, which has waited too long: it goes wherever there is room."""


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
    orders = [standing(line.shape) for line in lines]
    ranks = {order: rank for rank, order in enumerate(sorted(set(orders)))}
    heap = [
        (ranks[order], line.waiting[0].seq, n, 0)
        for n, (order, line) in enumerate(zip(orders, lines, strict=True))
        if line.waiting
    ]
    heapq.heapify(heap)
    return heap


def _oldest_overdue(workers: Workers[A], world: Snapshot) -> Line | None:
    """The line of the job that waited longest, if it is overdue and the last turn is long ago."""
    if world.now - world.last_aged_at < world.aging_s:
        return None
    late = [
        line
        for line in world.lines
        if line.waiting and world.now - line.waiting[0].since >= world.aging_s
    ]
    late.sort(key=lambda line: line.waiting[0].seq)
    return next((line for line in late if workers.could(line.shape)), None)


class Rooms:
    """Workers asked one by one: in plain words what `columns` computes for many at once."""

    def __init__(self, world: Snapshot) -> None:
        self._seats = world.seats
        self._left_ahead = MOST_AHEAD
        self._now = now = world.now
        self._rooms = []
        for seat in world.seats:
            if seat.present(now):
                room = Room(seat.worker, seat.held)
                room.on_probe = seat.on_probe(now)
                self._rooms.append(room)
        self._wanted = Wanted((line.shape, len(line.waiting)) for line in world.lines)
        count = world.keep_for_interactive
        self._not_for_batch = strongest(world.seats, count, now) if count else frozenset()

    def could(self, shape: Shape) -> bool:
        return any(refuse_ever(shape, seat.worker) is None for seat in self._seats)

    def able(self, line: Line, *, turn: bool = False) -> list[Room]:
        shape = line.shape
        able = [room for room in self._rooms if could_run(shape, room.worker)]
        if self._not_for_batch and not turn and shape.queue_class is QueueClass.BATCH:
            return [room for room in able if room.worker.id not in self._not_for_batch]
        return able

    def keep(self, line: Line, able: Sequence[Room]) -> str:
        kept = min(able, key=lambda room: room.worker.id)
        if line.shape.needs.models:
            kept = min(able, key=lambda room: emptied(line.shape, room))
        self._rooms.remove(kept)
        return kept.worker.id

    def search(self, line: Line, able: Sequence[Room], begin: int = 0) -> Iterator[Placement]:
        for waiting in line.waiting[begin:]:
            placement = self._place(line, waiting, able, ahead=self._left_ahead > 0)
            if placement is None:
                return
            self._left_ahead -= placement.ahead
            yield placement

    def turn(self, line: Line, able: Sequence[Room]) -> Placement | None:
        return self._place(line, line.waiting[0], able, ahead=False, turn=True)

    def _place(
        self,
        line: Line,
        waiting: Waiting,
        able: Sequence[Room],
        *,
        ahead: bool,
        turn: bool = False,
    ) -> Placement | None:
        """On the best worker with room now, else ahead on the one with the shortest local line."""
        shape, fitting = line.shape, len(able)
        if shape.needs.models and not turn:
            able = self._wanted.willing(shape, self._now - waiting.since, able)
        free = [
            room
            for room in able
            if not room.closed
            and not room.blocked(shape.needs)
            and room.fits_now(shape) is not None
        ]
        if free:
            room = free[0]
            if len(free) > 1:
                room = min(free, key=lambda candidate: preference(line, candidate))
            wanted = purpose(shape) if fitting > 1 else None
            why = reason(line, wanted, room, fitting, ahead=False)
            holding = room.fits_now(shape)
            assert holding is not None
            room.capacity.take(holding)
            self._load(shape, room)
            if room.on_probe:
                room.closed = "its circuit is half open: a probe is under way"
                self._rooms.remove(room)
            return Placement(waiting.job, waiting.attempt + 1, room.worker.id, why)
        behind = [
            room
            for room in able
            if ahead and room.takes_ahead(line.typical_s, shape.needs) and self._suits(line, room)
        ]
        if not behind:
            return None
        room = min(behind, key=lambda room: (missing(shape, room), room.ahead, room.worker.id))
        why = reason(line, None, room, fitting, ahead=True)
        room.send_ahead(shape.needs)
        self._load(shape, room)
        return Placement(waiting.job, waiting.attempt + 1, room.worker.id, why, ahead=True)

    def _load(self, shape: Shape, room: Room) -> None:
        if shape.needs.models:
            room.load(shape.needs)
            self._wanted.placed(shape)

    def _suits(self, line: Line, room: Room) -> bool:
        """Nothing waits on a worker that is meant for other work."""
        suits = room.worker.capabilities.suits
        return not suits or misfit(purpose(line.shape), suits) <= NEUTRAL
