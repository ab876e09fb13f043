"""The decision: a snapshot of what waits and what is free goes in, a plan comes out.

Waiting jobs of one shape form one line, and a line that fits nowhere is left after one look, so
a decision costs lines x workers plus what it places, however long the lines are.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from msgspec import Struct

from corral.core.job import JobId, QueueClass, Shape
from corral.core.worker import Worker
from corral.scheduler.fit import Held, Room, refuse_ever
from corral.scheduler.rank import preference, reason

CLASS_ORDER = {QueueClass.INTERACTIVE: 0, QueueClass.BATCH: 1}


class Waiting(Struct, frozen=True, gc=False):
    job: JobId
    seq: int
    """Its place: the order of submission, below zero where it was moved to the front. It keeps it
    through retries."""
    since: float
    attempt: int
    """The number of its last attempt."""


class Line(Struct, frozen=True):
    """The front of the queue of one shape."""

    shape: Shape
    waiting: tuple[Waiting, ...]
    typical_s: float = 0.0


class Seat(Struct, frozen=True):
    """A worker and what it holds."""

    worker: Worker
    held: tuple[Held, ...] = ()


class Snapshot(Struct, frozen=True):
    now: float
    lines: tuple[Line, ...]
    seats: tuple[Seat, ...]
    aging_s: float = 60.0
    last_aged_at: float = 0.0


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


def decide(world: Snapshot) -> Plan:
    """The same snapshot gives the same plan on any machine."""
    rooms = rooms_of(world.seats)
    placements: list[Placement] = []
    overdue = _oldest_overdue(world)
    turn: Placement | None = None
    if overdue is not None:
        line, waiting = overdue
        able = _able(line.shape, rooms)
        turn = _place(line, waiting, able, ahead=False)
        if turn is not None:
            placements.append(turn)
        elif able:
            # Always the same worker takes nothing else, so that it really empties.
            min(able, key=lambda room: room.worker.id).kept_for = waiting.job
    heads = _heads(world.lines)
    able_for: dict[int, list[Room]] = {}
    while heads:
        rank, number, index = heapq.heappop(heads)
        line = world.lines[number]
        waiting = line.waiting[index]
        if number not in able_for:
            able_for[number] = _able(line.shape, rooms)
        if turn is None or waiting.job != turn.job:
            placement = _place(line, waiting, able_for[number], ahead=True)
            if placement is None:
                continue  # the rest of the line has the same shape
            placements.append(placement)
        if index + 1 < len(line.waiting):
            following = line.waiting[index + 1]
            heapq.heappush(heads, ((*rank[:2], following.seq), number, index + 1))
    return Plan(
        placements=tuple(placements),
        overdue=overdue[1].job if overdue else None,
        turn=turn is not None,
    )


def rooms_of(seats: Sequence[Seat]) -> list[Room]:
    return [
        Room(seat.worker, seat.held)
        for seat in seats
        if seat.worker.connected and not seat.worker.draining
    ]


def _able(shape: Shape, rooms: Sequence[Room]) -> list[Room]:
    return [
        room for room in rooms if room.kept_for is None and refuse_ever(shape, room.worker) is None
    ]


def _heads(lines: Sequence[Line]) -> list[tuple[tuple[int, int, int], int, int]]:
    """The first of every line, by class, priority and order of submission, as a heap."""
    heap = [
        ((CLASS_ORDER[line.shape.queue_class], -line.shape.priority, line.waiting[0].seq), n, 0)
        for n, line in enumerate(lines)
        if line.waiting
    ]
    heapq.heapify(heap)
    return heap


def _place(line: Line, waiting: Waiting, able: Sequence[Room], *, ahead: bool) -> Placement | None:
    """On the best worker with room now, else ahead on the one with the shortest local line."""
    shape = line.shape
    free = [
        room for room in able if not room.blocked(shape.needs) and room.fits_now(shape) is not None
    ]
    if free:
        room = min(free, key=preference)
        why = reason(shape, room, len(able), ahead=False)
        holding = room.fits_now(shape)
        assert holding is not None
        room.capacity.take(holding)
        return Placement(waiting.job, waiting.attempt + 1, room.worker.id, why)
    behind = [room for room in able if ahead and room.takes_ahead(line.typical_s)]
    if not behind:
        return None
    room = min(behind, key=lambda candidate: (candidate.ahead, candidate.worker.id))
    why = reason(shape, room, len(able), ahead=True)
    room.send_ahead(shape.needs)
    return Placement(waiting.job, waiting.attempt + 1, room.worker.id, why, ahead=True)


def _oldest_overdue(world: Snapshot) -> tuple[Line, Waiting] | None:
    """The job that waited longest, if it waited too long and the last such turn is long ago."""
    if world.now - world.last_aged_at < world.aging_s:
        return None
    oldest: tuple[Line, Waiting] | None = None
    for line in world.lines:
        for waiting in line.waiting[:1]:
            if world.now - waiting.since < world.aging_s:
                continue
            if not any(refuse_ever(line.shape, seat.worker) is None for seat in world.seats):
                continue
            if oldest is None or waiting.seq < oldest[1].seq:
                oldest = (line, waiting)
    return oldest
