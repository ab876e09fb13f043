"""A few workers, asked one by one: the plain words for what `columns` computes for many at once."""

from __future__ import annotations

from collections.abc import Sequence

from corral.core.job import Shape
from corral.scheduler.fit import Room, refuse_ever
from corral.scheduler.rank import preference, reason
from corral.scheduler.snapshot import Line, Placement, Seat, Waiting


class Rooms:
    """The workers of a decision, as they are."""

    def __init__(self, seats: Sequence[Seat]) -> None:
        self._seats = seats
        self._rooms = [
            Room(seat.worker, seat.held)
            for seat in seats
            if seat.worker.connected and not seat.worker.draining
        ]

    def could(self, shape: Shape) -> bool:
        """Whether any known worker, asleep or not, could run it."""
        return any(refuse_ever(shape, seat.worker) is None for seat in self._seats)

    def able(self, shape: Shape) -> list[Room]:
        return [room for room in self._rooms if refuse_ever(shape, room.worker) is None]

    def keep(self, able: Sequence[Room]) -> None:
        """The first of them takes nothing else in this decision."""
        self._rooms.remove(min(able, key=lambda room: room.worker.id))

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
            room = min(free, key=preference) if len(free) > 1 else free[0]
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
