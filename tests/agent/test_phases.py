"""The life of an attempt on a worker, as the table says it."""

from __future__ import annotations

import pytest
from msgspec import Raw

from corral.agent.attempts.attempt import (
    IN_TURN,
    NEXT,
    AttemptKind,
    HeldAttempt,
    Phase,
    PhaseStep,
    Recipe,
)
from corral.agent.environments.builder import Spec
from corral.core.job import Needs
from corral.protocol.messages import JobDispatch


def attempt(*steps: PhaseStep) -> HeldAttempt:
    dispatch = JobDispatch("job1", 1, Raw(b"{}"), "", "", Needs())
    made = HeldAttempt(dispatch, Recipe(AttemptKind("function")), Spec("3.11"), 1)
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
    assert {step for _, step in NEXT} == set(PhaseStep)


def test_nothing_leaves_the_end() -> None:
    assert reached(Phase.OVER) == {Phase.OVER}
    over = attempt(PhaseStep.ENDS)
    for step in PhaseStep:
        assert not over.can(step)
        with pytest.raises(KeyError):
            over.step(step)


def test_only_what_a_runner_has_is_taken_back_and_then_it_waits() -> None:
    back = {phase: then for (phase, step), then in NEXT.items() if step is PhaseStep.TAKEN_BACK}
    assert set(back) == {Phase.SENT, *IN_TURN}
    assert set(back.values()) == {Phase.WAITING}


def test_that_it_begins_counts_once_whoever_says_so() -> None:
    for steps in (
        (PhaseStep.TURN_COLD,),
        (PhaseStep.TURN_WARM,),
        (PhaseStep.TURN_WARM, PhaseStep.FETCHES),
        (PhaseStep.TURN_WARM, PhaseStep.TOLD),
        (PhaseStep.SENT_AHEAD, PhaseStep.TURN_WARM, PhaseStep.TOLD),
    ):
        one = attempt(PhaseStep.PREPARED, *steps)
        assert one.phase in IN_TURN
        one.step(PhaseStep.BEGINS)
        assert not one.can(PhaseStep.BEGINS)
        assert not one.can(PhaseStep.TOLD)


def test_what_is_only_sent_has_not_begun() -> None:
    sent = attempt(PhaseStep.PREPARED, PhaseStep.SENT_AHEAD)
    assert not sent.can(PhaseStep.TOLD)
    assert not sent.can(PhaseStep.BEGINS)
