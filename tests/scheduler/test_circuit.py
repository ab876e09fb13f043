"""A worker that fails gets nothing more, then one job to show that it works again."""

from __future__ import annotations

import pytest

from corral.core.job import Failure, Needs, Shape
from corral.scheduler.circuit import CLOSED, RETURNED, Breaker, Circuit, after
from corral.scheduler.columns import Columns
from corral.scheduler.fit import Held, Room, refuse_now
from corral.scheduler.plan import Plan, Rooms, decide_among
from corral.scheduler.snapshot import Line, Seat, Snapshot, Waiting
from tests.scheduler.test_policies import worker

BREAKER = Breaker(failures=3, window_s=60.0, cool_s=10.0, cool_max_s=35.0)
DIED = Failure(code="process_died", message="killed")


def failing(*ends: tuple[str, float], circuit: Circuit = CLOSED) -> Circuit:
    for what, at in ends:
        circuit = after(circuit, DIED, what, at=at, breaker=BREAKER)
    return circuit


def opened(at: float = 0.0) -> Circuit:
    return failing(("a", at), ("b", at), ("c", at))


def test_it_opens_after_enough_failures_of_different_jobs_in_the_window() -> None:
    assert not failing(("a", 0), ("b", 1)).is_open(1)
    assert failing(("a", 0), ("b", 1), ("c", 2)).until == 12
    assert not failing(("a", 0), ("b", 1), ("c", 61)).is_open(61), "the first is too long ago"
    assert not failing(("a", 0), ("a", 1), ("a", 2)).is_open(2), "a job that dies everywhere"


@pytest.mark.parametrize("code", ["exception", "exit_code"])
def test_what_works_in_between_starts_the_count_again(code: str) -> None:
    for well in (None, Failure(code=code, message="")):
        twice = failing(("a", 0), ("b", 1))
        assert after(twice, well, "x", at=2, breaker=BREAKER) is CLOSED


def test_what_it_hands_back_unasked_counts() -> None:
    circuit = CLOSED
    back = Failure(code=RETURNED, message="It returned: no")
    for second in (0, 1, 2):
        circuit = after(circuit, back, f"returned at {second}", at=second, breaker=BREAKER)
    assert circuit.until == 12


@pytest.mark.parametrize(
    "code", ["worker_stopping", "model_missing", "over_duration", "cancelled", "out_of_memory"]
)
def test_what_is_not_its_fault_says_nothing_of_it(code: str) -> None:
    twice = failing(("a", 0), ("b", 1))
    told = Failure(code=code, message="")
    assert after(twice, told, "c", at=2, breaker=BREAKER) is twice


def test_each_failed_probe_makes_the_pause_longer_and_one_that_works_ends_it() -> None:
    circuit, pauses = opened(), []
    for number in range(4):
        now = circuit.until
        assert circuit.is_half_open(now)
        circuit = failing((f"probe{number}", now), circuit=circuit)
        pauses.append(circuit.until - now)
    assert pauses == [20, 35, 35, 35]
    early = after(circuit, None, "old", at=circuit.until - 1, breaker=BREAKER)
    assert early is circuit, "an older attempt that ends well is no probe"
    assert after(circuit, None, "probe", at=circuit.until, breaker=BREAKER) is CLOSED


def planned(*seats: Seat, now: float, jobs: int = 9) -> Plan:
    waiting = tuple(Waiting(f"j{n}", n, now, 0) for n in range(jobs))
    others = tuple(Waiting(f"k{n}", jobs + n, now, 0) for n in range(2))
    lines = (Line(Shape(Needs()), waiting), Line(Shape(Needs(memory_gb=1.0)), others))
    world = Snapshot(now, lines, seats)
    plan = decide_among(Rooms(world), world)
    assert decide_among(Columns(world), world) == plan, "many workers are asked the same"
    return plan


def test_an_open_worker_gets_nothing_and_a_half_open_one_gets_one_job() -> None:
    bad = worker("a", weight=9.0, ahead=9)
    good = Seat(worker("b", ahead=9))
    circuit = opened()
    assert {one.worker for one in planned(Seat(bad, (), circuit), good, now=9).placements} == {"b"}
    plan = planned(Seat(bad, (), circuit), good, now=10)
    assert [one.job for one in plan.placements if one.worker == "a"] == ["j0"]
    busy = Seat(bad, (Held(Needs(), started=True),), circuit)
    assert {one.worker for one in planned(busy, good, now=10).placements} == {"b"}
    closed = planned(Seat(bad), good, now=10)
    assert sum(one.worker == "a" for one in closed.placements) > 4


def test_one_that_its_probe_fills_is_not_counted_among_those_that_fit() -> None:
    probed = Seat(worker("a", cpus=1.0, weight=9.0), (), opened())
    plan = planned(probed, Seat(worker("b", cpus=1.0, ahead=9)), now=10, jobs=1)
    assert [(one.job, one.worker) for one in plan.placements[:2]] == [("j0", "a"), ("k0", "b")]
    assert plan.placements[1].why.startswith("the only worker that fits")


def test_why_says_so() -> None:
    room = Room(worker("a"))
    room.closed = opened(at=1.0).told(3.0, 0)
    told = "its circuit is open: 3 failures in 2 s, next probe in 8 s"
    assert refuse_now(Shape(Needs()), room) == told
    assert opened().told(10.0, 0) == ""
    assert "a probe is under way" in opened().told(10.0, 1)
