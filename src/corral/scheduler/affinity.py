"""Who holds out for a worker that has its model loaded, and who may make a worker load another.

Loading takes longer than many jobs, so a worker keeps to what it has loaded while such jobs wait
beside others of the same standing. No worker stays idle for it, and nobody starves of it: a turn
(see plan) asks nobody here.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from corral.core.job import QueueClass, Shape
from corral.scheduler.fit import Room, refuse_beside_others, refuse_ever
from corral.scheduler.rank import emptied

MAX_HOLD_OUT_S = 30.0
"""How long an interactive job holds out for a worker that has its model loaded, while the others
have work of their own. Loading takes about as long, so it gains by that, and so do those who wait
for what a worker would have to unload."""

SMALL_FIRST_S = 5.0
"""Where nobody has it loaded, the smaller half of the workers load it for an interactive job: what
the big ones could do meanwhile is worth more. After this long, any."""


class Wanted:
    """The lines that want models, while a decision is made."""

    def __init__(self, lines: Iterable[tuple[Shape, int]]) -> None:
        self._left = {shape: left for shape, left in lines if shape.needs.models and left}

    def shapes(self) -> Container[Shape]:
        """Those of which some still wait."""
        return self._left

    def placed(self, shape: Shape) -> bool:
        """One job less waits in this line; whether it was the last."""
        left = self._left.get(shape, 0) - 1
        if left > 0:
            self._left[shape] = left
            return False
        return self._left.pop(shape, None) is not None

    def willing(self, shape: Shape, waited_s: float, able: Sequence[Room]) -> Sequence[Room]:
        """The workers that the next job of this shape may go to now."""
        if not shape.needs.models:
            return able
        gladly = [room for room in able if room.has_loaded(shape.needs)]
        if shape.queue_class is QueueClass.INTERACTIVE:
            if waited_s >= (MAX_HOLD_OUT_S if gladly else SMALL_FIRST_S):
                return able
            if not gladly:
                smallest_first = sorted(able, key=lambda room: emptied(shape, room))
                gladly = smallest_first[: (len(able) + 1) // 2]
        return [room for room in able if room in gladly or self.own_work(shape, room) is None]

    def own_work(self, shape: Shape, room: Room) -> Shape | None:
        """What waits for models that this worker has loaded, and goes before this shape there:
        for an interactive job that holds out anything does, else what stands no lower."""
        urgent = shape.queue_class is QueueClass.INTERACTIVE
        for other in self._left if room.models else ():
            if (
                room.has_loaded(other.needs)
                and (urgent or standing(other) <= standing(shape))
                and refuse_ever(other, room.worker) is None
                and refuse_beside_others(other, room.worker) is None
            ):
                return other
        return None

    def keeps_to(
        self, shape: Shape, waited_s: float, room: Room, rooms: Sequence[Room]
    ) -> str | None:
        """Why this worker does not load a model for this shape now; None where it would."""
        able = [one for one in rooms if _able(shape, one)]
        if room not in able or room in self.willing(shape, waited_s, able):
            return None
        own = self.own_work(shape, room)
        if own is None:
            return None
        loaded, wanted = ", ".join(own.needs.models), ", ".join(shape.needs.models)
        return f"it has {loaded} loaded and jobs for that wait; it loads {wanted} after them"


def _able(shape: Shape, room: Room) -> bool:
    worker = room.worker
    if room.closed or not worker.connected or worker.draining:
        return False
    return refuse_ever(shape, worker) is None and refuse_beside_others(shape, worker) is None


def standing(shape: Shape) -> tuple[bool, int]:
    """Lower goes first: interactive before batch, then by priority."""
    return shape.queue_class is QueueClass.BATCH, -shape.priority
