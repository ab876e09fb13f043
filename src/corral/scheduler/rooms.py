"""A few workers, asked one by one: the plain words for what `columns` computes for many at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from corral.core.job import QueueClass, Shape
from corral.scheduler.affinity import Wanted
from corral.scheduler.fit import MOST_AHEAD, Room, refuse_beside_others, refuse_ever
from corral.scheduler.rank import (
    NEUTRAL,
    emptied,
    misfit,
    missing,
    preference,
    purpose,
    reason,
    strongest,
)
from corral.scheduler.snapshot import Line, Placement, Snapshot, Waiting


class Rooms:
    """The workers of a decision, as they are."""

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
        """Whether any known worker, asleep or not, could run it."""
        return any(refuse_ever(shape, seat.worker) is None for seat in self._seats)

    def able(self, line: Line, *, turn: bool = False) -> list[Room]:
        shape = line.shape
        able = [
            room
            for room in self._rooms
            if refuse_ever(shape, room.worker) is None
            and refuse_beside_others(shape, room.worker) is None
        ]
        if self._not_for_batch and not turn and shape.queue_class is QueueClass.BATCH:
            return [room for room in able if room.worker.id not in self._not_for_batch]
        return able

    def keep(self, line: Line, able: Sequence[Room]) -> str:
        """The first of them takes nothing else in this decision, or the best to load its models."""
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
        """Of the line's first job, which has waited too long."""
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
                room.probe()
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
