"""Which of the workers that fit is best for a shape.

First whether it has the models loaded, or on its disk; then what a worker is for and its weight, as
its owner said; then the smallest sufficient card, the most room, how quickly it did such work
before, and who did it last.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from heapq import nsmallest
from math import log2

from corral.core.job import QueueClass, Shape
from corral.core.worker import Capabilities
from corral.scheduler.fit import Room
from corral.scheduler.snapshot import Line, Seat

NEUTRAL = 3
_SUITS = {"low-latency": 0, "cpu-only": 1, "high-memory": 2}
_LAST = {"low-latency": 4, "high-memory": 5}

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


def place_of(wanted: Purpose, can: Capabilities) -> tuple[int, float, float]:
    """What does not change while a decision is made. Lower is better. Work without a GPU stays off
    GPU machines where it can; small GPU work stays off big cards, so that they are free when big
    work comes, and that finds its tightest fit."""
    return misfit(wanted, can.suits), -can.weight, biggest_card(can)


def preference(line: Line, room: Room) -> tuple[object, ...]:
    """Lower is better."""
    can = room.worker.capabilities
    return (
        missing(line.shape, room),
        place_of(purpose(line.shape), can),
        standing(can, room.ahead, room.capacity.cpus),
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


def standing(can: Capabilities, ahead: int, free_cpus: float) -> tuple[float, float]:
    """Among those with equal cards: who has fewer waiting, then who has more room. It only gets
    worse while a decision is made."""
    return ahead, -free_cpus / max(can.cpus, 0.1)


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
    """How quickly it did such work, in steps of about a fifth, and when it did so last. A worker
    that never did counts as an average one."""
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
    return said + free_there(room, cards=line.shape.needs.wants_gpu)


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


def free_there(room: Room, *, cards: bool) -> str:
    free = room.capacity
    if not cards:
        return free_words(free.cpus)
    return free_words(free.cpus, list(free.tenths.values()).count(10))


def free_words(cpus: float, whole: int = -1) -> str:
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
