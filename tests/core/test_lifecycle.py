"""Two walks over the table: nothing leaves an end, and everything can reach one."""

from __future__ import annotations

import pytest

from corral.core.errors import Conflict
from corral.core.events import (
    AttemptPlaced,
    AttemptStarted,
    CheckpointStored,
    JobRequeued,
    JobSubmitted,
    JobSucceeded,
    ResultOrphaned,
    decode_fact,
    encode_fact,
)
from corral.core.job import ENDED, Needs, State
from corral.core.lifecycle import NEXT, NOTES, advance, born


def submitted() -> JobSubmitted:
    return JobSubmitted(job="j", at=1.0, needs=Needs(gpus=1), digest="d", retries=2)


def test_nothing_leaves_an_end_state() -> None:
    assert not [step for step in NEXT if step[0] in ENDED]


def test_every_state_can_reach_an_end() -> None:
    reaches = set(ENDED)
    while True:
        more = {state for (state, _), to in NEXT.items() if to in reaches and state is not None}
        if more <= reaches:
            break
        reaches |= more
    assert reaches == set(State)


def test_every_state_is_reached_from_the_beginning() -> None:
    reached: set[State | None] = {None}
    while more := {to for (state, _), to in NEXT.items() if state in reached} - reached:
        reached |= more
    assert reached == {None, *State}


def test_a_fact_survives_the_journal() -> None:
    fact = submitted()
    assert decode_fact(encode_fact(fact)) == fact


def test_a_job_walks_its_life() -> None:
    head = born(submitted(), 1)
    assert head.state is State.QUEUED
    head = advance(head, AttemptPlaced(job="j", at=2, attempt=1, worker="w"), 2)
    head = advance(head, AttemptStarted(job="j", at=3, attempt=1, devices=("GPU-1",)), 3)
    assert (head.state, head.worker, head.course.devices) == (State.RUNNING, "w", ("GPU-1",))
    requeued = JobRequeued(job="j", at=4, attempt=1, code="x", message="m", fault="job", avoid="w")
    head = advance(head, requeued, 4)
    assert (head.state, head.worker, head.course.failures, head.shape.avoid) == (
        State.QUEUED,
        "",
        1,
        ("w",),
    )
    head = advance(head, AttemptPlaced(job="j", at=5, attempt=2, worker="v"), 5)
    head = advance(head, JobSucceeded(job="j", at=6, attempt=2, seconds=1.0), 6)
    assert head.state is State.SUCCEEDED
    with pytest.raises(Conflict):
        advance(head, JobSucceeded(job="j", at=7, attempt=2, seconds=1.0), 7)


def test_an_attempt_number_only_grows() -> None:
    head = born(submitted(), 1)
    head = advance(head, AttemptPlaced(job="j", at=2, attempt=3, worker="w"), 2)
    head = advance(head, JobRequeued(job="j", at=3, attempt=3, code="x", message="m"), 3)
    with pytest.raises(Conflict, match="not above 3"):
        advance(head, AttemptPlaced(job="j", at=4, attempt=3, worker="w"), 4)


def test_notes_move_nothing() -> None:
    head = born(submitted(), 1)
    note = CheckpointStored(job="j", at=2, attempt=1, size=3, sha256="abc")
    after = advance(head, note, 2)
    assert (after.state, after.course.checkpoint, after.last_seq) == (State.QUEUED, "abc", 2)
    assert ResultOrphaned in NOTES
