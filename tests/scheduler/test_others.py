"""VRAM of processes that are not Corral's is taken: no plan reaches into it, and `why` says so."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from corral.core.events import AttemptExited, JobRequeued
from corral.core.job import Course, Failure, Given, Head, Needs, Shape, State
from corral.core.worker import GPU, Capabilities, Capacity, Reading, Worker, taken_by_others
from corral.scheduler.columns import Columns
from corral.scheduler.fit import Held, Room, refuse_ever, refuse_now
from corral.scheduler.plan import Plan, Rooms, decide, decide_among
from corral.scheduler.settle import Policy, settle
from corral.scheduler.snapshot import Line, Seat, Snapshot, Waiting
from tests.scheduler.strategies import snapshots


def machine(*cards_gb: float, others_gb: tuple[float, ...] = (), name: str = "w") -> Worker:
    gpus = tuple(GPU(f"GPU-{name}-{n}", "RTX 3090", gb) for n, gb in enumerate(cards_gb))
    can = Capabilities(cpus=8.0, memory_gb=64.0, gpus=gpus, workloads=("python",))
    readings = tuple(
        Reading(gpu.uuid, others_gb=gb) for gpu, gb in zip(gpus, others_gb, strict=False)
    )
    return Worker(name, name, "agents", can, readings=readings, taken=taken_by_others(readings))


def planned(shape: Shape, *seats: Seat, jobs: int = 1) -> Plan:
    waiting = tuple(Waiting(f"j{n}", n, 1000.0, 0) for n in range(jobs))
    world = Snapshot(1000.0, (Line(shape, waiting),), seats)
    plan = decide_among(Rooms(world), world)
    assert decide_among(Columns(world), world) == plan
    return plan


@pytest.mark.parametrize(
    ("others_gb", "needs", "fits"),
    [
        (0.9, Needs(gpus=1, vram_gb=24), True),  # a desktop
        (4.0, Needs(gpus=1), True),
        (4.0, Needs(gpus=1, vram_gb=20), True),
        (4.0, Needs(gpus=1, vram_gb=20.1), False),
        (6.0, Needs(gpus=1), False),  # not a whole one any more
        (12.0, Needs(gpu_tenths=5), True),
        (12.1, Needs(gpu_tenths=5), False),
        (2.4, Needs(gpu_tenths=9), True),
        (2.5, Needs(gpu_tenths=9), False),
        (23.9, Needs(), True),
    ],
)
def test_what_fits_beside_others(others_gb: float, needs: Needs, fits: bool) -> None:
    worker = machine(24.0, others_gb=(others_gb,))
    assert bool(planned(Shape(needs), Seat(worker)).placements) is fits
    assert (refuse_now(Shape(needs), Room(worker)) is None) is fits
    assert refuse_ever(Shape(needs), worker) is None, "when they are gone it fits"


def test_shares_and_others_together_fill_a_card_and_no_more() -> None:
    worker = machine(24.0, others_gb=(4.0,))  # two tenths
    plan = planned(Shape(Needs(gpu_tenths=4)), Seat(worker), jobs=9)
    assert [placement.ahead for placement in plan.placements][:3] == [False, False, True]


def test_two_cards_of_one_name_are_two_cards() -> None:
    worker = machine(24.0, 24.0, others_gb=(20.0, 0.0))
    (placed,) = (one for one in planned(Shape(Needs(gpus=1)), Seat(worker)).placements)
    assert placed.worker == "w"
    holding = Room(worker).fits_now(Shape(Needs(gpus=1, vram_gb=20)))
    assert holding is not None
    assert holding.devices == ("GPU-w-1",)
    assert not planned(Shape(Needs(gpus=2)), Seat(worker)).placements


def test_why_names_them() -> None:
    worker = machine(24.0, others_gb=(21.3,))
    told = refuse_now(Shape(Needs(gpus=1, vram_gb=20)), Room(worker))
    assert told == (
        "needs 1 GPU with 20 GB of VRAM, and 21.3 GB are used by processes that are not Corral's"
    )
    busy = Room(
        machine(24.0, others_gb=(4.0,)), [Held(Needs(gpu_tenths=5), ("GPU-w-0",), started=True)]
    )
    told = refuse_now(Shape(Needs(gpu_tenths=5)), busy)
    assert told == (
        "busy: needs 0.5 of a GPU, at most 0.5 is free; 4 GB are used by processes that are not "
        "Corral's"
    )


def test_why_names_a_lost_card() -> None:
    worker = machine(24.0, others_gb=(24.0,))
    worker = replace(worker, readings=tuple(replace(one, lost=True) for one in worker.readings))
    told = refuse_now(Shape(Needs(gpus=1)), Room(worker))
    assert told == "needs 1 GPU, and its driver does not answer for 1 GPU"


def test_nothing_is_sent_ahead_to_where_others_are_in_the_way() -> None:
    """Nobody knows when they go, so the job stays free to go elsewhere."""
    full = machine(24.0, others_gb=(20.0,))
    assert not planned(Shape(Needs(gpus=1)), Seat(full)).placements
    other = machine(12.0, name="x")
    busy = Seat(other, (Held(Needs(gpus=1), ("GPU-x-0",), started=True),))
    (placed,) = planned(Shape(Needs(gpus=1)), Seat(full), busy).placements
    assert (placed.worker, placed.ahead) == ("x", True)


def test_out_of_memory_beside_others_waits_for_more_than_it_had() -> None:
    worker = machine(24.0, others_gb=(10.0,))
    shape = Shape(Needs(gpu_tenths=5))
    head = Head(
        "j", shape, State.RUNNING, 0.0, 1, 2, given=Given(retries=3),
        course=Course(attempt=1, worker="w", devices=("GPU-w-0",)),
    )  # fmt: skip
    exited = AttemptExited("j", 1, "w", 1.0, 1.0, failure=Failure("out_of_memory", "no room"))
    fact = settle(head, exited, digest="", now=1.0, policy=Policy(), jitter=0.5, workers=[worker])
    assert isinstance(fact, JobRequeued)
    assert fact.above_vram_gb == 14.0
    again = replace(shape, above_vram_gb=fact.above_vram_gb)
    assert not planned(again, Seat(worker)).placements
    assert planned(again, Seat(machine(24.0))).placements, "they are gone"


@given(snapshots(policies=True))
@settings(max_examples=300, deadline=None)
def test_no_plan_reaches_into_what_others_hold(world: Snapshot) -> None:
    shapes = {one.job: line.shape for line in world.lines for one in line.waiting}
    rooms = {seat.worker.id: Room(seat.worker, seat.held) for seat in world.seats}
    for placement in decide(world).placements:
        if placement.ahead or not shapes[placement.job].needs.wants_gpu:
            continue
        room, needs = rooms[placement.worker], shapes[placement.job].needs
        holding = room.fits_now(shapes[placement.job])
        assert holding is not None
        sizes = {gpu.uuid: gpu.vram_gb for gpu in room.worker.capabilities.gpus}
        for uuid in holding.devices:
            left_gb = sizes[uuid] - dict(room.worker.taken).get(uuid, 0.0)
            assert left_gb >= needs.vram_gb
            if needs.gpu_tenths:
                shared = 10 - room.capacity.tenths[uuid] + needs.gpu_tenths
                assert shared / 10 * sizes[uuid] <= left_gb + 1e-6
        room.capacity.take(holding)


def test_the_fast_way_and_the_other_agree() -> None:
    can = machine(24.0).capabilities
    for needs in (Needs(gpus=1), Needs(gpu_tenths=3), Needs(gpus=1, vram_gb=24.0)):
        assert Capacity(can).fits(needs) == Capacity(can, [("another", 3.0)]).fits(needs)
