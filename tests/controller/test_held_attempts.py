"""Attempts that wait on a worker by the hundred, counted: a decision sees what it saw of each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from corral.controller.world import HeldAttempts
from corral.core.job import Needs
from corral.core.worker import GPU, Capabilities, Worker
from corral.scheduler.fit import Held, Room

NEEDS = [Needs(), Needs(cpus=3.0), Needs(gpus=1), Needs(gpu_tenths=5), Needs(memory_gb=6.0)]
WORKER = Worker(
    id="w",
    name="w",
    engine="agents",
    capabilities=Capabilities(
        cpus=4.0, memory_gb=8.0, gpus=(GPU(uuid="GPU-0", name="card", vram_gb=24.0),)
    ),
)
ONE = st.tuples(st.integers(0, 8), st.sampled_from(range(len(NEEDS))), st.booleans(), st.booleans())
"""A job, what it needs, whether it has begun, and whether it goes instead."""


def _seen(held: tuple[Held, ...]) -> tuple[object, ...]:
    room = Room(WORKER, held)
    free = room.capacity
    return room.ahead, room.ahead_without_gpu, free.cpus, free.memory_gb, dict(free.tenths)


@given(st.lists(ONE, max_size=40))
def test_counted_and_one_by_one_leave_the_same_room(
    changes: list[tuple[int, int, bool, bool]],
) -> None:
    counted, plain = HeldAttempts(), dict[str, Held]()
    for job, need, begun, goes in changes:
        name, needs = f"j{job}", NEEDS[need]
        plain.pop(name, None)
        counted.remove(name)
        if not goes:
            devices = ("GPU-0",) if begun and needs.wants_gpu else ()
            plain[name] = Held(needs, devices, begun)
            counted.add(name, plain[name])
        assert sum(one.count for one in counted.all()) == len(plain)
        assert bool(counted) == bool(plain)
        assert _seen(counted.all()) == _seen(tuple(plain.values()))


def test_those_that_are_alike_are_one() -> None:
    counted = HeldAttempts()
    needs = Needs()
    for number in range(500):
        counted.add(f"j{number}", Held(needs))
    counted.add("j0", Held(needs, (), True))
    counted.add("j500", Held(needs))
    assert [(one.started, one.count) for one in counted.all()] == [(False, 500), (True, 1)]
