"""GPUs by name, and sentences about several cards that add up."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from corral.core.job import Needs, Shape
from corral.core.worker import GPU, Capabilities, Worker
from corral.scheduler.columns import Columns
from corral.scheduler.fit import Held, Room, refuse_ever, refuse_now
from corral.scheduler.plan import Rooms, decide_among
from corral.scheduler.snapshot import Line, Seat, Snapshot, Waiting

SMALL, LARGE = ("NVIDIA GeForce RTX 3060", 12.0), ("NVIDIA GeForce RTX 4090", 24.0)


def machine(*cards: tuple[str, float], name: str = "w") -> Worker:
    gpus = tuple(GPU(f"GPU-{name}-{n}", called, gb) for n, (called, gb) in enumerate(cards))
    can = Capabilities(cpus=8.0, memory_gb=64.0, gpus=gpus, workloads=("python",), ahead=0)
    return Worker(name, name, "agents", can)


def taken(worker: Worker, *places: int) -> Held:
    devices = tuple(worker.capabilities.gpus[place].uuid for place in places)
    return Held(Needs(gpus=len(places)), devices, started=True)


def placed(needs: Needs, *seats: Seat) -> list[str]:
    line = Line(Shape(needs), (Waiting("j", 1, 1000.0, 0),))
    world = Snapshot(1000.0, (line,), seats)
    plan = decide_among(Rooms(world), world)
    assert decide_among(Columns(world), world) == plan
    return [one.worker for one in plan.placements]


@pytest.mark.parametrize(
    ("wanted", "workers"),
    [
        ("RTX 4090", ["large"]),
        ("rtx4090", ["large"]),
        ("4090", ["large"]),
        ("RTX 3060", ["small"]),
        ("RTX 409", []),
        ("H100", []),
    ],
)
def test_a_job_goes_where_the_card_is_called_so(wanted: str, workers: list[str]) -> None:
    seats = Seat(machine(SMALL, name="small")), Seat(machine(LARGE, name="large"))
    assert placed(Needs(gpus=1, gpu=wanted), *seats) == workers
    assert placed(Needs(gpu_tenths=5, gpu=wanted), *seats) == workers


def test_of_several_cards_it_gets_the_one_that_is_called_so() -> None:
    both = machine(SMALL, LARGE)
    needs = Needs(gpus=1, gpu="RTX 4090")
    holding = Room(both).fits_now(Shape(needs))
    assert holding is not None
    assert holding.devices == ("GPU-w-1",)
    assert placed(needs, Seat(both, (taken(both, 1),))) == []
    assert placed(needs, Seat(both, (taken(both, 0),))) == ["w"]


def test_a_machine_without_any_gpu_is_told_which_one_is_asked_for() -> None:
    told = refuse_ever(Shape(Needs(gpus=1, gpu="RTX 4090")), machine())
    assert told == "needs 1 GPU called RTX 4090, it has none"


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        (
            Shape(Needs(gpus=1, gpu="H100")),
            "needs 1 GPU called H100, it has 2 NVIDIA GeForce RTX 3060 and 1 NVIDIA GeForce RTX "
            "4090",
        ),
        (
            Shape(Needs(gpus=2, gpu="RTX 4090", vram_gb=8)),
            "needs 2 GPUs called RTX 4090 with 8 GB of VRAM, it has 2 NVIDIA GeForce RTX 3060 and "
            "1 NVIDIA GeForce RTX 4090",
        ),
        (
            Shape(Needs(gpus=1, gpu="RTX 3060", vram_gb=20)),
            "needs 1 GPU called RTX 3060 with 20 GB of VRAM, its largest has 12",
        ),
        (
            Shape(Needs(gpus=2, vram_gb=20)),
            "needs 2 GPUs with 20 GB of VRAM, it has 1 such",
        ),
        (
            Shape(Needs(gpus=2), above_vram_gb=12),
            "ran out of memory on 12 GB of VRAM, it has 1 of the 2 larger GPUs it needs",
        ),
        (
            Shape(Needs(gpus=1), above_vram_gb=24),
            "ran out of memory on 24 GB of VRAM, it has no larger GPU",
        ),
    ],
)
def test_why_a_machine_never_takes_it(shape: Shape, told: str) -> None:
    three = machine(SMALL, SMALL, LARGE)
    assert refuse_ever(shape, three) == told
    assert placed(shape.needs, Seat(three)) == [] or shape.above_vram_gb


def test_cards_that_are_free_and_would_not_do_are_not_counted() -> None:
    both = machine(SMALL, LARGE)
    room = Room(both, (taken(both, 1),))
    told = refuse_now(Shape(Needs(gpus=1, vram_gb=20)), room)
    assert told == "busy: needs 1 GPU with 20 GB of VRAM to itself, none such free"
    told = refuse_now(Shape(Needs(gpu_tenths=5, gpu="RTX 4090")), room)
    assert told == "busy: needs 0.5 of a GPU called RTX 4090, at most 0 of such one is free"
    full = Room(both, (taken(both, 0, 1),))
    assert refuse_now(Shape(Needs(gpus=1)), full) == "busy: needs 1 GPU to itself, none free"


def test_a_name_stays_with_a_job_that_needs_more_memory() -> None:
    both = machine(SMALL, LARGE)
    shape = replace(Shape(Needs(gpus=1, gpu="RTX 3060")), above_vram_gb=12.0)
    assert refuse_ever(shape, both) == "ran out of memory on 12 GB of VRAM, it has no larger GPU"
