"""Who of those that wait on a busy worker would begin at once on another."""

from __future__ import annotations

from hypothesis import given, settings
from msgspec.structs import replace

from corral.core.job import Needs, QueueClass, Shape
from corral.core.worker import Worker
from corral.scheduler.circuit import Circuit
from corral.scheduler.fit import Held, Room
from corral.scheduler.plan import decide
from corral.scheduler.recall import Sent, behind, recalled
from corral.scheduler.snapshot import Line, Seat, Snapshot, Waiting
from tests.scheduler.strategies import snapshots
from tests.scheduler.test_policies import worker

PLAIN = Shape(Needs())


def sent(*jobs: str, shape: Shape = PLAIN) -> list[Sent]:
    return [Sent(job, 1, shape, n, 990.0) for n, job in enumerate(jobs)]


def busy(one: Worker, waiting: int, needs: Needs = Needs()) -> Seat:  # noqa: B008
    running = [Held(Needs(), started=True)] * int(one.capabilities.cpus)
    return Seat(one, (*running, *[Held(needs)] * waiting))


def asked(*seats: Seat, ahead: list[Sent], lines: tuple[Line, ...] = (), **more: int) -> list[str]:
    world = Snapshot(1000.0, lines, seats, **more)
    there = behind(Room(seats[0].worker, seats[0].held), ahead)
    return [one.job for one in recalled(world, {seats[0].worker.id: there})]


def test_the_next_ones_go_to_a_worker_that_fell_idle_as_many_as_it_has_room_for() -> None:
    long, free = busy(worker("a", cpus=1), 3), Seat(worker("b", cpus=2))
    assert asked(long, free, ahead=sent("j1", "j2", "j3")) == ["j1", "j2"]


def test_nobody_is_idle_nobody_is_asked() -> None:
    assert asked(busy(worker("a"), 2), busy(worker("b"), 0), ahead=sent("j1", "j2")) == []


def test_what_can_begin_where_it_is_stays_there() -> None:
    starting = Seat(worker("a", cpus=2), (Held(Needs()), Held(Needs())))
    assert asked(starting, Seat(worker("b")), ahead=sent("j1", "j2")) == []


def test_whoever_waits_goes_first() -> None:
    waiting = (Line(PLAIN, (Waiting("w", -5, 990.0, 0),)),)
    assert (
        asked(busy(worker("a"), 2), Seat(worker("b", cpus=1)), ahead=sent("j1"), lines=waiting)
        == []
    )


def test_only_where_the_job_may_go() -> None:
    here = sent("j1", shape=Shape(Needs(worker="a")))
    assert asked(busy(worker("a"), 1), Seat(worker("b")), ahead=here) == []
    draining = Seat(replace(worker("b"), draining=True))
    assert asked(busy(worker("a"), 1), draining, ahead=sent("j1")) == []
    opened = Seat(worker("b"), (), Circuit({"x": 1.0}, 1, 2000.0))
    assert asked(busy(worker("a"), 1), opened, ahead=sent("j1")) == []
    batch = asked(busy(worker("a"), 1), Seat(worker("b")), ahead=sent("j1"), keep_for_interactive=1)
    assert batch == []
    urgent = sent("j1", shape=Shape(Needs(), queue_class=QueueClass.INTERACTIVE))
    assert asked(busy(worker("a"), 1), Seat(worker("b")), ahead=urgent, keep_for_interactive=1) == [
        "j1"
    ]


@given(snapshots(most=10, policies=True))
@settings(max_examples=150, deadline=None)
def test_what_is_asked_back_begins_at_once_elsewhere(world: Snapshot) -> None:
    """No ping-pong: once it is back, the very next decision starts it on another worker."""
    there: dict[str, list[Sent]] = {}
    for number, seat in enumerate(world.seats):
        unbegun = [
            Sent(f"s{number}-{n}", 1, Shape(one.needs), 500 + n, 990.0)
            for n, one in enumerate(seat.held)
            if not one.started
        ]
        if found := behind(Room(seat.worker, seat.held), unbegun):
            there[seat.worker.id] = list(found)
    back = recalled(world, there)
    owner = {one.job: name for name, ones in there.items() for one in ones}
    lines = {line.shape: line for line in world.lines}
    for one in back:
        line = lines.get(one.shape) or Line(one.shape, ())
        waiting = (*line.waiting, Waiting(one.job, one.seq, one.since, one.attempt))
        lines[one.shape] = replace(
            line, waiting=tuple(sorted(waiting, key=lambda waiting: waiting.seq))
        )
    placed = {
        one.job: one for one in decide(replace(world, lines=tuple(lines.values()))).placements
    }
    for one in back:
        assert not placed[one.job].ahead
        assert placed[one.job].worker != owner[one.job]
