"""A few workers, asked one by one: the plain words for what `columns` computes for many at once."""

from __future__ import annotations

from collections.abc import Sequence

from corral.core.job import QueueClass, Shape
from corral.scheduler.fit import Room, refuse_ever
from corral.scheduler.rank import NEUTRAL, misfit, preference, purpose, reason, strongest
from corral.scheduler.snapshot import Line, Placement, Snapshot, Waiting


class Rooms:
    """The workers of a decision, as they are."""

    def __init__(self, world: Snapshot) -> None:
        self._seats = world.seats
        self._rooms = [
            Room(seat.worker, seat.held)
            for seat in world.seats
            if seat.worker.connected and not seat.worker.draining
        ]
        count = world.keep_for_interactive
        self._not_for_batch = strongest(world.seats, count) if count else frozenset()

    def could(self, shape: Shape) -> bool:
        """Whether any known worker, asleep or not, could run it."""
        return any(refuse_ever(shape, seat.worker) is None for seat in self._seats)

    def able(self, line: Line, *, turn: bool = False) -> list[Room]:
        shape = line.shape
        able = [room for room in self._rooms if refuse_ever(shape, room.worker) is None]
        if self._not_for_batch and not turn and shape.queue_class is QueueClass.BATCH:
            return [room for room in able if room.worker.id not in self._not_for_batch]
        return able

    def keep(self, able: Sequence[Room]) -> str:
        """The first of them takes nothing else in this decision."""
        kept = min(able, key=lambda room: room.worker.id)
        self._rooms.remove(kept)
        return kept.worker.id

    def place(
        self, line: Line, waiting: Waiting, able: Sequence[Room], *, ahead: bool
    ) -> Placement | None:
        """On the best worker with room now, else ahead on the one with the shortest local line."""
        shape = line.shape
        free = [
            room
            for room in able
            if not room.blocked(shape.needs) and room.fits_now(shape) is not None
        ]
        if free:
            room = free[0]
            if len(free) > 1:
                room = min(free, key=lambda candidate: preference(line, candidate))
            wanted = purpose(shape) if len(able) > 1 else None
            why = reason(line, wanted, room, len(able), ahead=False)
            holding = room.fits_now(shape)
            assert holding is not None
            room.capacity.take(holding)
            return Placement(waiting.job, waiting.attempt + 1, room.worker.id, why)
        behind = [
            room
            for room in able
            if ahead and room.takes_ahead(line.typical_s) and self._suits(line, room)
        ]
        if not behind:
            return None
        room = min(behind, key=lambda candidate: (candidate.ahead, candidate.worker.id))
        why = reason(line, None, room, len(able), ahead=True)
        room.send_ahead(shape.needs)
        return Placement(waiting.job, waiting.attempt + 1, room.worker.id, why, ahead=True)

    def _suits(self, line: Line, room: Room) -> bool:
        """Nothing waits on a worker that is meant for other work."""
        suits = room.worker.capabilities.suits
        return not suits or misfit(purpose(line.shape), suits) <= NEUTRAL
