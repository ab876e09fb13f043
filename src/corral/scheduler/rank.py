"""Which of the workers that fit is best for a shape: smallest sufficient card, then most room."""

from __future__ import annotations

from corral.core.job import Shape
from corral.scheduler.fit import Room, counted


def preference(room: Room) -> tuple[float, float, float, str]:
    """Lower is better. Work without a GPU stays off GPU machines where it can; small GPU work
    stays off big cards, so that they are free when big work comes."""
    can = room.worker.capabilities
    biggest = max((gpu.vram_gb for gpu in can.gpus), default=0.0)
    return (biggest, room.ahead, -room.capacity.cpus / max(can.cpus, 0.1), room.worker.id)


def reason(shape: Shape, room: Room, candidates: int, *, ahead: bool) -> str:
    """One sentence for `corral why` about a placed job."""
    chosen = "the only worker that fits" if candidates == 1 else f"best of {candidates} that fit"
    if ahead:
        behind = f"behind {room.ahead} that wait there" if room.ahead else "next in line there"
        return f"{chosen}; sent ahead, {behind}"
    free = f"{counted(max(room.capacity.cpus, 0), 'CPU')} free"
    if shape.needs.wants_gpu:
        whole = sum(tenths == 10 for tenths in room.capacity.tenths.values())
        free += f", {counted(whole, 'whole GPU')} free"
    return f"{chosen}; {free}"
