"""What owners say of their workers, and what was measured there, decides where a job goes."""

from __future__ import annotations

from typing import Any

import pytest

from corral.core.job import Needs, QueueClass, Shape, Workload
from corral.core.worker import GPU, Capabilities, Worker
from corral.scheduler.columns import Columns
from corral.scheduler.fit import Held, refuse_ever
from corral.scheduler.plan import Placement, Plan, Rooms, decide_among
from corral.scheduler.rank import strongest
from corral.scheduler.snapshot import Line, Seat, Snapshot, Waiting

BUSY = Held(Needs(gpus=1), started=True)


def worker(name: str, *cards_gb: float, cpus: float = 4.0, ahead: int = 0, **said: Any) -> Worker:
    gpus = tuple(GPU(f"GPU-{name}-{n}", "x", gb) for n, gb in enumerate(cards_gb))
    said = {"workloads": ("python",), **said}
    can = Capabilities(cpus=cpus, memory_gb=64.0, gpus=gpus, ahead=ahead, **said)
    return Worker(id=name, name=name, engine="simulated", capabilities=can)


def shape(queue_class: QueueClass = QueueClass.BATCH, **needs: Any) -> Shape:
    return Shape(Needs(**needs), queue_class=queue_class)


def planned(*seats: Worker | Seat, jobs: int = 1, of: Shape, **more: Any) -> Plan:
    since = more.pop("since", 1000.0)
    line_more = {key: more.pop(key) for key in ("typical_s", "paces") if key in more}
    waiting = tuple(Waiting(f"j{n}", n, since, 0) for n in range(jobs))
    taken = tuple(one if isinstance(one, Seat) else Seat(one) for one in seats)
    world = Snapshot(1000.0, (Line(of, waiting, **line_more),), taken, **more)
    plan = decide_among(Rooms(world), world)
    assert decide_among(Columns(world), world) == plan, "many workers are asked the same"
    return plan


def first(plan: Plan) -> Placement:
    return plan.placements[0]


INTERACTIVE = QueueClass.INTERACTIVE


@pytest.mark.parametrize("workload", list(Workload))
def test_a_worker_gets_no_workload_that_it_does_not_name(workload: Workload) -> None:
    silent = Worker("a", "a", "simulated", Capabilities(cpus=4.0, memory_gb=64.0))
    assert not planned(silent, of=Shape(Needs(), workload)).placements
    assert refuse_ever(Shape(Needs(), workload), silent) == f"it does not accept {workload} jobs"
    named = worker("a", workloads=(workload,))
    assert first(planned(named, of=Shape(Needs(), workload))).worker == "a"


def test_a_reserved_worker_takes_no_batch() -> None:
    ours = worker("a", reserved_for="interactive")
    assert not planned(ours, of=shape()).placements
    assert refuse_ever(shape(), ours) == "it is reserved for interactive jobs"
    assert first(planned(ours, of=shape(INTERACTIVE))).worker == "a"


def test_more_weight_comes_first() -> None:
    placed = first(planned(worker("a"), worker("b", weight=2.0), of=shape()))
    assert placed.worker == "b"
    assert "its weight is 2" in placed.why


@pytest.mark.parametrize(
    ("suits", "wanted", "other"),
    [
        ("low-latency", shape(INTERACTIVE), shape()),
        ("high-memory", shape(memory_gb=8.0), shape()),
        ("cpu-only", shape(), None),
    ],
)
def test_a_class_gets_its_work_first_and_other_work_last(
    suits: str, wanted: Shape, other: Shape | None
) -> None:
    plain, special = worker("a", ahead=1), worker("b", suits=suits, ahead=1)
    placed = first(planned(plain, special, of=wanted))
    assert (placed.worker, f"its class {suits} is for such jobs" in placed.why) == ("b", True)
    if other is None:
        return
    plan = planned(worker("z"), special, jobs=9, of=other)
    now = [one.worker for one in plan.placements if not one.ahead]
    assert now == ["z"] * 4 + ["b"] * 4
    assert f"no other than one of class {suits} had room" in plan.placements[4].why
    assert not [one for one in plan.placements if one.ahead], "nothing waits where it is not meant"


def test_a_cpu_only_worker_takes_no_gpu_work() -> None:
    ours = worker("a", 24.0, suits="cpu-only")
    assert not planned(ours, of=shape(gpus=1)).placements
    told = refuse_ever(shape(gpus=1), ours)
    assert told == "its class is cpu-only: it takes no jobs that need a GPU"


def test_big_jobs_go_to_big_cards_and_small_ones_leave_them_free() -> None:
    cluster = (worker("a", 80.0), worker("b", 12.0), worker("c", 24.0))
    small = first(planned(*cluster, of=shape(gpus=1)))
    assert small.worker == "b"
    assert "the smallest card with room, 12 GB" in small.why
    assert first(planned(*cluster, of=shape(gpus=1, vram_gb=20.0))).worker == "c"
    assert first(planned(*cluster, of=shape(gpus=1, vram_gb=40.0))).worker == "a"


def test_the_strongest_is_kept_free_for_interactive_work() -> None:
    cluster = (worker("a", 24.0), worker("b", 8.0))
    left = planned(*cluster, jobs=9, of=shape(gpus=1), keep_for_interactive=1)
    assert [one.worker for one in left.placements] == ["b"]
    urgent = planned(*cluster, jobs=9, of=shape(INTERACTIVE, gpus=1), keep_for_interactive=1)
    assert {one.worker for one in urgent.placements} == {"a", "b"}


def test_of_equal_cards_the_idle_one_is_kept() -> None:
    busy, idle = Seat(worker("a", 24.0), (BUSY,)), Seat(worker("b", 24.0))
    assert strongest((busy, idle), 1, 0.0) == {"b"}
    asleep = Worker("z", "z", "simulated", worker("z", 80.0).capabilities, connected=False)
    assert strongest((busy, idle, Seat(asleep)), 2, 0.0) == {"a", "b"}


def test_batch_that_waited_too_long_gets_its_turn_on_a_kept_worker() -> None:
    ours = worker("a", 24.0)
    asked: dict[str, Any] = {"of": shape(gpus=1), "keep_for_interactive": 1}
    assert not planned(ours, **asked, since=990.0).placements
    late = planned(ours, **asked, since=900.0)
    assert late.turn
    assert first(late).worker == "a"


def test_of_equal_workers_the_quicker_one_and_then_the_latest() -> None:
    cluster = (worker("a"), worker("b"), worker("c"))
    asked: dict[str, Any] = {"of": shape(), "typical_s": 4.0}
    assert first(planned(*cluster, **asked)).worker == "a"
    slow = {"a": (9.0, 990.0)}
    assert first(planned(*cluster, **asked, paces=slow)).worker == "b"
    quick = {**slow, "b": (4.0, 980.0), "c": (2.0, 900.0)}
    placed = first(planned(*cluster, **asked, paces=quick))
    assert placed.worker == "c"
    assert "such jobs took 2 s there" in placed.why
    latest = {"b": (4.0, 980.0), "c": (4.1, 990.0)}
    assert first(planned(*cluster, **asked, paces=latest)).worker == "c"


def test_room_counts_for_more_than_speed() -> None:
    busy = Seat(worker("a"), (Held(Needs(cpus=2.0), started=True),))
    quick = {"a": (0.1, 990.0)}
    assert first(planned(busy, worker("b"), of=shape(), typical_s=4.0, paces=quick)).worker == "b"


def test_images_on_a_worker_without_gpu_are_a_matter_of_the_plan() -> None:
    bare = worker("bare", task_types=("render",), workloads=("pipeline",))
    told = refuse_ever(Shape(Needs(gpus=1, task="render"), workload=Workload.PIPELINE), bare)
    assert told is not None
    assert "needs: {gpus: 0}" in told
