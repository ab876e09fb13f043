"""The life of an attempt on a worker, as the table says it."""

from __future__ import annotations

import pytest
from msgspec import Raw

from corral.agent.attempt import Attempt, Kind, Recipe
from corral.agent.environments import Spec
from corral.agent.phases import IN_TURN, NEXT, Phase, Step
from corral.core.job import Needs
from corral.protocol.messages import JobDispatch


def attempt(*steps: Step) -> Attempt:
    dispatch = JobDispatch("job1", 1, Raw(b"{}"), "", "", Needs())
    made = Attempt(dispatch, Recipe(Kind("function")), Spec("3.11"), 1)
    for step in steps:
        made.step(step)
    return made


def reached(start: Phase) -> set[Phase]:
    found, new = set[Phase](), {start}
    while new:
        found |= new
        new = {then for (phase, _), then in NEXT.items() if phase in new} - found
    return found


def test_every_phase_comes_about_and_all_come_to_an_end() -> None:
    assert reached(Phase.PREPARING) == set(Phase)
    for phase in Phase:
        assert Phase.OVER in reached(phase)
    assert {step for _, step in NEXT} == set(Step)


def test_nothing_leaves_the_end() -> None:
    assert reached(Phase.OVER) == {Phase.OVER}
    over = attempt(Step.ENDS)
    for step in Step:
        assert not over.can(step)
        with pytest.raises(KeyError):
            over.step(step)


def test_only_what_a_runner_has_is_taken_back_and_then_it_waits() -> None:
    back = {phase: then for (phase, step), then in NEXT.items() if step is Step.TAKEN_BACK}
    assert set(back) == {Phase.SENT, *IN_TURN}
    assert set(back.values()) == {Phase.WAITING}


def test_that_it_begins_counts_once_whoever_says_so() -> None:
    for steps in (
        (Step.TURN_COLD,),
        (Step.TURN_WARM,),
        (Step.TURN_WARM, Step.FETCHES),
        (Step.TURN_WARM, Step.TOLD),
        (Step.SENT_AHEAD, Step.TURN_WARM, Step.TOLD),
    ):
        one = attempt(Step.PREPARED, *steps)
        assert one.phase in IN_TURN
        one.step(Step.BEGINS)
        assert not one.can(Step.BEGINS)
        assert not one.can(Step.TOLD)


def test_what_is_only_sent_has_not_begun() -> None:
    sent = attempt(Step.PREPARED, Step.SENT_AHEAD)
    assert not sent.can(Step.TOLD)
    assert not sent.can(Step.BEGINS)
