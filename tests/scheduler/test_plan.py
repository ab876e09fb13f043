"""What must hold for every decision, whatever waits and whatever is free."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from corral.core.job import Needs, QueueClass, Shape
from corral.core.worker import GPU, Capabilities, Capacity, Holding, Worker
from corral.scheduler.columns import Columns
from corral.scheduler.fit import MOST_AHEAD, Held, Room, refuse_ever, refuse_now
from corral.scheduler.plan import (
    Line,
    Plan,
    Rooms,
    Seat,
    Snapshot,
    Waiting,
    decide,
    decide_among,
)
from tests.scheduler.strategies import shapes, snapshots, workers


def shape_of(world: Snapshot) -> dict[str, Shape]:
    return {waiting.job: line.shape for line in world.lines for waiting in line.waiting}


@given(snapshots())
@settings(max_examples=300, deadline=None)
def test_nothing_is_oversubscribed(world: Snapshot) -> None:
    shapes_by_job = shape_of(world)
    rooms = {seat.worker.id: Room(seat.worker, seat.held) for seat in world.seats}
    for placement in decide(world).placements:
        room = rooms[placement.worker]
        assert room.worker.connected
        assert not room.worker.draining
        if not placement.ahead:
            holding = room.fits_now(shapes_by_job[placement.job])
            assert holding is not None
            room.capacity.take(holding)
            assert room.capacity.cpus > -1e-9
            assert room.capacity.memory_gb > -1e-9
            assert all(0 <= tenths <= 10 for tenths in room.capacity.tenths.values())


@given(snapshots())
@settings(max_examples=300, deadline=None)
def test_a_plan_places_each_job_once_with_the_next_number(world: Snapshot) -> None:
    last = {waiting.job: waiting.attempt for line in world.lines for waiting in line.waiting}
    plan = decide(world)
    assert len({placement.job for placement in plan.placements}) == len(plan.placements)
    for placement in plan.placements:
        assert placement.attempt == last[placement.job] + 1
        assert placement.why


@given(snapshots())
@settings(max_examples=200, deadline=None)
def test_the_same_snapshot_gives_the_same_plan(world: Snapshot) -> None:
    assert decide(world) == decide(world)


@given(snapshots())
@settings(max_examples=300, deadline=None)
def test_what_is_left_waiting_has_a_reason_on_every_worker(world: Snapshot) -> None:
    """`why` and `decide` agree: after a plan, no connected worker would take a head of a line."""
    plan = decide(world)
    placed = {placement.job for placement in plan.placements}
    rooms = {seat.worker.id: Room(seat.worker, seat.held) for seat in world.seats}
    shapes_by_job = shape_of(world)
    for placement in plan.placements:
        shape = shapes_by_job[placement.job]
        holding = rooms[placement.worker].fits_now(shape)
        if placement.ahead or holding is None:
            rooms[placement.worker].send_ahead(shape.needs)
        else:
            rooms[placement.worker].capacity.take(holding)
    for line in world.lines:
        left = [waiting for waiting in line.waiting if waiting.job not in placed]
        if not left or (plan.overdue is not None and not plan.turn):
            continue
        for room in rooms.values():
            refused = refuse_now(line.shape, room)
            assert refused or room.blocked(line.shape.needs)


@given(shapes(), workers(0))
@settings(max_examples=300, deadline=None)
def test_refused_for_good_means_it_never_fits_an_empty_worker(shape: Shape, worker: Worker) -> None:
    reason = refuse_ever(shape, worker)
    fits = Capacity(worker.capabilities).fits(shape.needs, above_vram_gb=shape.above_vram_gb)
    if reason is None:
        assert fits is not None
    elif reason.startswith(("needs", "ran out")):
        assert fits is None


def one_gpu_worker(cpus: float = 4.0) -> Worker:
    return Worker(
        id="w",
        name="w",
        engine="simulated",
        capabilities=Capabilities(
            cpus=cpus,
            memory_gb=64.0,
            gpus=(GPU("GPU-0", "x", 24.0),),
            workloads=("python",),
            ahead=0,
        ),
    )


class Cluster:
    """One worker in simulated time: attempts end after a second, oldest first."""

    def __init__(self, worker: Worker, aging_s: float) -> None:
        self.worker, self.aging_s = worker, aging_s
        self.now, self.last_aged_at, self.seq = 0.0, -1e9, 0
        self.lines: dict[Shape, deque[Waiting]] = {}
        self.held: dict[str, tuple[Needs, Holding, float]] = {}
        self.started: dict[str, float] = {}

    def submit(self, shape: Shape) -> str:
        self.seq += 1
        job = f"j{self.seq}"
        self.lines.setdefault(shape, deque()).append(Waiting(job, self.seq, self.now, 0))
        return job

    def step(self, seconds: float = 1.0) -> Plan:
        self.now += seconds
        self.held = {job: it for job, it in self.held.items() if it[2] > self.now}
        held = tuple(Held(needs, holding.devices, True) for needs, holding, _ in self.held.values())
        lines = tuple(Line(shape, tuple(line)[:50]) for shape, line in self.lines.items() if line)
        world = Snapshot(
            self.now, lines, (Seat(self.worker, held),), self.aging_s, self.last_aged_at
        )
        plan = decide(world)
        if plan.turn:
            self.last_aged_at = self.now
        room = Room(self.worker, held)
        for placement in plan.placements:
            for shape, line in self.lines.items():
                for waiting in line:
                    if waiting.job == placement.job:
                        holding = room.fits_now(shape)
                        assert holding is not None, "oversubscribed"
                        room.capacity.take(holding)
                        self.held[waiting.job] = (shape.needs, holding, self.now + 1.0)
                        self.started[waiting.job] = self.now
                        line.remove(waiting)
                        break
        return plan


@given(st.integers(1, 12), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_aging_bounds_the_wait_of_batch_behind_endless_interactive(batch: int, flood: int) -> None:
    cluster = Cluster(one_gpu_worker(cpus=1.0), aging_s=10.0)
    background = Shape(Needs(), queue_class=QueueClass.BATCH)
    urgent = Shape(Needs(), queue_class=QueueClass.INTERACTIVE)
    jobs = [cluster.submit(background) for _ in range(batch)]
    bound = 10.0 * (batch + 1) + 2.0
    while cluster.now < bound:
        for _ in range(flood):
            cluster.submit(urgent)
        cluster.step()
    assert set(jobs) <= set(cluster.started)
    assert cluster.started[jobs[0]] <= 12.0
    assert [cluster.started[job] for job in jobs] == sorted(cluster.started[job] for job in jobs)


def test_without_aging_the_same_flood_starves_batch() -> None:
    cluster = Cluster(one_gpu_worker(cpus=1.0), aging_s=1e9)
    job = cluster.submit(Shape(Needs(), queue_class=QueueClass.BATCH))
    while cluster.now < 200:
        cluster.submit(Shape(Needs(), queue_class=QueueClass.INTERACTIVE))
        cluster.step()
    assert job not in cluster.started


def test_a_large_job_is_not_starved_by_small_ones() -> None:
    cluster = Cluster(one_gpu_worker(), aging_s=10.0)
    small = Shape(Needs(gpu_tenths=3))
    cluster.submit(small)
    cluster.step(0.5)
    large = cluster.submit(Shape(Needs(gpus=1)))
    while large not in cluster.started and cluster.now < 60:
        cluster.submit(small)
        cluster.submit(small)
        cluster.step(0.4)
    assert cluster.started[large] <= 13.0


def test_an_old_backlog_does_not_overtake_interactive_work() -> None:
    cluster = Cluster(one_gpu_worker(cpus=1.0), aging_s=10.0)
    for _ in range(500):
        cluster.submit(Shape(Needs(), queue_class=QueueClass.BATCH))
    for _ in range(100):
        cluster.step()
    job = cluster.submit(Shape(Needs(), queue_class=QueueClass.INTERACTIVE))
    before = cluster.now
    while job not in cluster.started:
        cluster.step()
    assert cluster.started[job] - before <= 2.0


def test_first_come_first_served_inside_a_priority_across_shapes() -> None:
    cluster = Cluster(one_gpu_worker(cpus=1.0), aging_s=1e9)
    one, other = Shape(Needs(memory_gb=1)), Shape(Needs(memory_gb=2))
    jobs = [cluster.submit(shape) for shape in (one, other, one, other)]
    first = cluster.submit(Shape(Needs(), priority=5))
    while len(cluster.started) < 5:
        cluster.step()
    assert sorted(cluster.started, key=cluster.started.__getitem__) == [first, *jobs]


def test_a_decision_fills_every_slot_and_leaves_most_of_what_goes_ahead_to_the_next() -> None:
    can = Capabilities(cpus=2.0, memory_gb=16.0, workloads=("python",), ahead=512)
    cluster = [
        Worker(id=f"w{n:02}", name=f"n{n}", engine="simulated", capabilities=can)
        for n in range(MOST_AHEAD // 100)
    ]
    waiting = tuple(Waiting(f"j{n}", n, 0.0, 0) for n in range(4 * MOST_AHEAD))
    line = Line(Shape(Needs(cpus=1.0)), waiting, typical_s=0.0001)
    world = Snapshot(0.0, (line,), tuple(map(Seat, cluster)))
    plans = decide_among(Rooms(world), world), decide_among(Columns(world), world)
    for placements in (plan.placements for plan in plans):
        assert sum(not one.ahead for one in placements) == 2 * len(cluster)
        assert sum(one.ahead for one in placements) == MOST_AHEAD
