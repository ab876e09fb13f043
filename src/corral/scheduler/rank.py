"""Which of the workers that fit is best for a shape.

First whether it has the models loaded, or on its disk; then what a worker is for and its weight, as
its owner said; then the smallest sufficient card, the most room, how quickly it did such work
before, and who did it last.

Loading takes longer than many jobs, so a worker keeps to what it has loaded while such jobs wait
beside others of the same standing. No worker stays idle for it, and nobody starves of it: a turn
(see plan) asks nobody here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from heapq import nsmallest
from math import log2

from corral.core.job import QueueClass, Shape
from corral.core.worker import Capabilities
from corral.scheduler.fit import Room, could_run
from corral.scheduler.snapshot import Line, Seat

NEUTRAL = 3
_SUITS = {"low-latency": 0, "cpu-only": 1, "high-memory": 2}
_LAST = {"low-latency": 4, "high-memory": 5}

MAX_HOLD_OUT_S = 30.0
"""How long an interactive job holds out for a worker that has its model loaded, while the others
have work of their own. Loading takes about as long, and unloads what somebody else waits for."""

SMALL_FIRST_S = 5.0
"""Where nobody has it loaded, the smaller half of the workers load it for an interactive job: what
the big ones could do meanwhile is worth more. After this long, any."""

Purpose = tuple[bool, bool, bool]
"""What a shape is to a class of workers: interactive, of a stated size, without a GPU."""


def purpose(shape: Shape) -> Purpose:
    needs = shape.needs
    return (
        shape.queue_class is QueueClass.INTERACTIVE,
        bool(needs.vram_gb or needs.memory_gb),
        not needs.wants_gpu,
    )


def misfit(wanted: Purpose, suits: str) -> int:
    """Lower is better, and never the same for two classes, so that no two of them ever tie."""
    if not suits:
        return NEUTRAL
    interactive, sized, without_gpu = wanted
    suited = {"low-latency": interactive, "high-memory": sized, "cpu-only": without_gpu}[suits]
    return _SUITS[suits] if suited else _LAST.get(suits, NEUTRAL + 3)


def preference(line: Line, room: Room) -> tuple[object, ...]:
    """Lower is better. Of those that suit alike the one with the smallest card, or none: large ones
    stay free for work that needs them. Then who has fewer waiting, then who has more room."""
    can = room.worker.capabilities
    return (
        missing(line.shape, room),
        misfit(purpose(line.shape), can.suits),
        -can.weight,
        biggest_card(can),
        room.ahead,
        -room.capacity.cpus / max(can.cpus, 0.1),
        pace(line, room.worker.id),
        room.worker.id,
    )


def missing(shape: Shape, room: Room) -> int:
    """How far the models of a shape are: 0 loaded, 1 on the worker's disk, 2 to be fetched."""
    if room.has_loaded(shape.needs):
        return 0
    present = room.worker.capabilities.models_present
    return 1 if all(model in present for model in shape.needs.models) else 2


def emptied(shape: Shape, room: Room) -> tuple[int, float, str]:
    """Lower is better: which worker to empty for a job with models that has waited too long."""
    return missing(shape, room), biggest_card(room.worker.capabilities), room.worker.id


def biggest_card(can: Capabilities) -> float:
    gpus = can.gpus
    if len(gpus) == 1:
        return gpus[0].vram_gb
    return max((gpu.vram_gb for gpu in gpus), default=0.0)


def strongest(seats: Sequence[Seat], count: int, now: float) -> frozenset[str]:
    """Those with the largest cards that are there; of equal ones first those that have nothing to
    do, so that batch may use the others."""

    def order(seat: Seat) -> tuple[float, bool, float, str]:
        can = seat.worker.capabilities
        return -biggest_card(can), bool(seat.held), -can.cpus, seat.worker.id

    present = [one for one in seats if one.present(now)]
    cards = [biggest_card(one.worker.capabilities) for one in present]
    if count < len(cards):
        least = sorted(cards)[-count]  # whoever has less is not asked any further
        present = [one for one, card in zip(present, cards, strict=True) if card >= least]
    return frozenset(one.worker.id for one in nsmallest(count, present, key=order))


UNKNOWN = (0, 0.0)


def pace(line: Line, worker: str) -> tuple[int, float]:
    """How quickly it did such work, in steps of a fifth, and when last. Strangers are average."""
    found = line.paces.get(worker)
    if found is None or line.typical_s <= 0:
        return UNKNOWN
    seconds, at = found
    return round(4 * log2(max(seconds, 1e-4) / line.typical_s)), -at


def reason(line: Line, wanted: Purpose | None, room: Room, candidates: int, *, ahead: bool) -> str:
    """One sentence for `corral why` about a placed job; `wanted` only where there was a choice."""
    said = chosen(candidates)
    if line.shape.needs.models:
        said += of_models(line.shape.needs.models, missing(line.shape, room))
    if ahead:
        return said + ahead_of(room.ahead)
    if wanted is not None and candidates > 1:
        can = room.worker.capabilities
        said += liked(wanted, can.suits, can.weight, biggest_card(can))
        if room.worker.id in line.paces:
            said += of_pace(line.paces[room.worker.id][0])
    free, cards = room.capacity, line.shape.needs.wants_gpu
    return said + free_words(free.cpus, list(free.tenths.values()).count(10) if cards else -1)


def of_models(models: tuple[str, ...], missing: int) -> str:
    how = ("has {} loaded", "loads {} from its disk", "fetches and loads {}")
    return f"; it {how[missing].format(', '.join(models))}"


def of_pace(seconds: float) -> str:
    return f"; such jobs took {seconds:.3g} s there"


def chosen(candidates: int) -> str:
    return "the only worker that fits" if candidates == 1 else f"best of {candidates} that fit"


def ahead_of(waiting: int) -> str:
    behind = f"behind {waiting} that wait there" if waiting else "next in line there"
    return f"; sent ahead, {behind}"


def free_words(cpus: float, whole: int) -> str:
    """Processors, and whole GPUs where somebody asked for one."""
    cards = _WHOLE[whole] if whole < 2 else f", {whole} whole GPUs free"
    if cpus == 1:
        return f"; 1 CPU free{cards}"
    return f"; {cpus if cpus > 0 else 0:g} CPUs free{cards}"


_WHOLE = {-1: "", 0: ", 0 whole GPUs free", 1: ", 1 whole GPU free"}


@lru_cache(maxsize=4096)
def liked(wanted: Purpose, suits: str, weight: float, card: float) -> str:
    """What speaks for this worker before any other."""
    found = []
    order = misfit(wanted, suits)
    if order < NEUTRAL:
        found.append(f"its class {suits} is for such jobs")
    elif order > NEUTRAL:
        found.append(f"no other than one of class {suits} had room")
    if weight != 1.0:
        found.append(f"its weight is {weight:g}")
    if not wanted[2]:
        found.append(f"the smallest card with room, {card:g} GB")
    return "".join(f"; {one}" for one in found)


class Wanted:
    """The lines that want models, while a decision is made."""

    def __init__(self, lines: Iterable[tuple[Shape, int]]) -> None:
        self._left = {shape: left for shape, left in lines if shape.needs.models and left}

    def placed(self, shape: Shape) -> None:
        left = self._left.get(shape, 0) - 1
        if left > 0:
            self._left[shape] = left
        else:
            self._left.pop(shape, None)

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
                and could_run(other, room.worker)
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
    return not room.closed and room.worker.takes_work and could_run(shape, room.worker)


def standing(shape: Shape) -> tuple[bool, int]:
    """Lower goes first: interactive before batch, then by priority."""
    return shape.queue_class is QueueClass.BATCH, -shape.priority
