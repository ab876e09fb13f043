"""Which of the workers that fit is best for a shape: smallest sufficient card, then most room."""

from __future__ import annotations

from corral.core.job import Shape
from corral.core.worker import Capabilities
from corral.scheduler.fit import Room, counted


def preference(room: Room) -> tuple[float, tuple[float, float], str]:
    """Lower is better. Work without a GPU stays off GPU machines where it can; small GPU work
    stays off big cards, so that they are free when big work comes."""
    can = room.worker.capabilities
    return biggest_card(can), standing(can, room.ahead, room.capacity.cpus), room.worker.id


def biggest_card(can: Capabilities) -> float:
    gpus = can.gpus
    if len(gpus) == 1:
        return gpus[0].vram_gb
    return max((gpu.vram_gb for gpu in gpus), default=0.0)


def standing(can: Capabilities, ahead: int, free_cpus: float) -> tuple[float, float]:
    """Among those with equal cards: who has fewer waiting, then who has more room. It only gets
    worse while a decision is made."""
    return ahead, -free_cpus / max(can.cpus, 0.1)


def reason(shape: Shape, room: Room, candidates: int, *, ahead: bool) -> str:
    """One sentence for `corral why` about a placed job."""
    chosen = "the only worker that fits" if candidates == 1 else f"best of {candidates} that fit"
    if ahead:
        behind = f"behind {room.ahead} that wait there" if room.ahead else "next in line there"
        return f"{chosen}; sent ahead, {behind}"
    free = room.capacity
    cpus = counted(max(free.cpus, 0), "CPU")
    if not shape.needs.wants_gpu:
        return f"{chosen}; {cpus} free"
    whole = list(free.tenths.values()).count(10)
    return f"{chosen}; {cpus} free, {counted(whole, 'whole GPU')} free"
