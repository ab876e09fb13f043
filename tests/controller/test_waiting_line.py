"""Lines of waiting jobs: in order, and as quick to leave from anywhere however many wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.controller.waiting_line import BLOCK, WaitingLine
from corral.controller.world import World
from corral.core.job import Course, Head, Needs, Shape, State
from corral.scheduler.plan import Waiting

SHAPE = Shape(needs=Needs())
MANY = 3 * BLOCK


class CountedId(str):
    """An id that counts how often somebody compares it with another."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedId.compared += 1
        return str.__eq__(self, other)


def queued(number: int) -> Head:
    return Head(
        id=CountedId(f"job{number:012d}"),
        shape=SHAPE,
        state=State.QUEUED,
        submitted_at=float(number),
        submitted_seq=number,
        last_seq=number,
    )


def at_place(number: int) -> Head:
    """Below zero for one that was moved to the front."""
    return replace(queued(abs(number)), id=f"job{number}", course=Course(front=max(0, -number)))


def test_the_newest_of_very_many_is_taken_out_without_looking_at_the_others() -> None:
    world, heads = World(), [queued(number) for number in range(1, MANY)]
    for head in heads:
        world.apply(head)
    CountedId.compared = 0
    for head in reversed(heads[-100:]):
        world.apply(replace(head, state=State.CANCELLED))
    assert CountedId.compared < 100 * 20
    assert sum(world.waiting.values()) == len(heads) - 100
    assert world.position(heads[-101]) == len(heads) - 101
    (line,) = world.snapshot(0.0, (), 1.0).lines
    assert [one.job for one in line.waiting] == [head.id for head in heads[:512]]


def test_a_delayed_job_is_cancelled_without_looking_through_its_line() -> None:
    world = World()
    for number in range(1, MANY):
        world.apply(queued(number))
    delayed = replace(queued(MANY), course=Course(not_before=1e12))
    world.apply(delayed)
    CountedId.compared = 0
    world.apply(replace(delayed, state=State.CANCELLED))
    assert CountedId.compared < 20


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(-60, 60)),
        max_size=200,
    )
)
def test_it_is_an_ordered_list_whatever_comes_and_goes(steps: list[tuple[bool, int]]) -> None:
    line, model = WaitingLine(block=4), dict[int, Head]()
    for comes, number in steps:
        head = at_place(number)
        place = head.place
        if comes and place not in model:
            model[place] = head
            line.add(head)
        elif not comes:
            line.remove(head.id, place)
            model.pop(place, None)
        ordered = [model[place] for place in sorted(model)]
        assert list(line) == ordered
        assert len(line) == len(ordered)
        seen = [Waiting(one.id, one.place, one.submitted_at, 0) for one in ordered]
        assert line.front(7) == tuple(seen[:7])
        assert line.front(2) == tuple(seen[:2])
        for number, one in enumerate(ordered):
            assert line.ahead_of(one.id, one.place) == number
        if ordered:
            assert line.first == ordered[0]
