"""The life of a job as one table, and the only function that moves a job along it."""

from __future__ import annotations

from operator import attrgetter

from msgspec.structs import replace

from corral.core.errors import Conflict
from corral.core.events import (
    ArtifactStored,
    AttemptPlaced,
    AttemptStarted,
    CheckpointStored,
    Fact,
    JobCancelled,
    JobExtended,
    JobFailed,
    JobMovedToFront,
    JobRejected,
    JobRequeued,
    JobStopping,
    JobSubmitted,
    JobSucceeded,
    Journaled,
    ResultOrphaned,
    SubmissionFact,
)
from corral.core.job import Course, Given, Head, Job, Shape, State

QUEUED, PLACED, RUNNING, STOPPING = State.QUEUED, State.PLACED, State.RUNNING, State.STOPPING
SUCCEEDED, FAILED, CANCELLED = State.SUCCEEDED, State.FAILED, State.CANCELLED

NEXT: dict[tuple[State | None, type[Fact]], State] = {
    (None, JobSubmitted): QUEUED,
    (None, JobRejected): State.REJECTED,
    (QUEUED, JobMovedToFront): QUEUED,
    (QUEUED, JobExtended): QUEUED,
    (PLACED, JobExtended): PLACED,
    (RUNNING, JobExtended): RUNNING,
    (QUEUED, AttemptPlaced): PLACED,
    (QUEUED, JobCancelled): CANCELLED,
    (QUEUED, JobFailed): FAILED,
    (PLACED, AttemptStarted): RUNNING,
    (PLACED, JobRequeued): QUEUED,
    (PLACED, JobStopping): STOPPING,
    (PLACED, JobSucceeded): SUCCEEDED,
    (PLACED, JobFailed): FAILED,
    (RUNNING, JobRequeued): QUEUED,
    (RUNNING, JobStopping): STOPPING,
    (RUNNING, JobSucceeded): SUCCEEDED,
    (RUNNING, JobFailed): FAILED,
    (STOPPING, AttemptStarted): STOPPING,
    (STOPPING, JobSucceeded): SUCCEEDED,
    (STOPPING, JobFailed): FAILED,
    (STOPPING, JobCancelled): CANCELLED,
}

NOTES: frozenset[type[Fact]] = frozenset({ArtifactStored, CheckpointStored, ResultOrphaned})
"""Facts that are kept beside a job in any state and move nothing."""
STORED = (ArtifactStored, CheckpointStored)
"""Those of which one job may have very many: who wants to know how it went passes them by."""


_NOT_BEGUN = Course()
_given = attrgetter(*Given.__struct_fields__)


def shape_of(of: SubmissionFact | Job) -> Shape:
    return Shape(of.needs, of.workload, of.queue_class, of.priority)


def born(fact: JobSubmitted | JobRejected, seq: int, like: Head | None = None) -> Head:
    """The head of a new job. It shares what equals that of `like`: very many may wait."""
    shape = shape_of(fact)
    given = Given(*_given(fact))
    if like is not None:
        shape = like.shape if like.shape == shape else shape
        given = like.given if like.given == given else given
    return Head(
        id=fact.job,
        shape=shape,
        state=NEXT[None, type(fact)],
        submitted_at=fact.at,
        submitted_seq=seq,
        last_seq=seq,
        given=given,
        key=fact.key,
        course=Course(checkpoint=fact.checkpoint) if fact.checkpoint else _NOT_BEGUN,
    )


def advance(head: Head, fact: Journaled, seq: int) -> Head:
    """The head after this fact, or Conflict where the table has no such step."""
    kind, course = type(fact), head.course
    if kind in NOTES:
        return replace(head, last_seq=seq, course=_noted(head, fact))
    if course.story_seq:
        course = replace(course, story_seq=0)
    state = NEXT.get((head.state, kind))
    if state is None:
        raise Conflict(
            f"Job {head.id} is {head.state}; {kind.__name__} cannot follow.", job_id=head.id
        )
    if isinstance(fact, AttemptPlaced):
        if fact.attempt <= course.attempt:
            raise Conflict(
                f"Attempt {fact.attempt} of job {head.id} is not above {course.attempt}.",
                job_id=head.id,
            )
        course = replace(
            course,
            attempt=fact.attempt,
            worker=fact.worker,
            engine=fact.engine,
            devices=(),
            started_at=0.0,
        )
    elif isinstance(fact, AttemptStarted):
        course = replace(course, devices=fact.devices, started_at=fact.at)
    elif isinstance(fact, JobMovedToFront):
        course = replace(course, front=seq)
    elif isinstance(fact, JobExtended):
        course = replace(course, extended_s=course.extended_s + fact.by_s)
    elif isinstance(fact, JobRequeued):
        course = replace(
            course,
            worker="",
            engine="",
            devices=(),
            started_at=0.0,
            not_before=fact.not_before,
            failures=course.failures + (fact.fault == "job"),
            losses=course.losses + (fact.fault == "worker"),
        )
        head = replace(head, shape=_narrowed(head.shape, fact))
    elif course.checkpoint and state.ended:
        course = replace(course, checkpoint="")  # nothing goes on from there
    return replace(head, last_seq=seq, state=state, course=course)


def _noted(head: Head, fact: Journaled) -> Course:
    if not isinstance(fact, STORED):
        return replace(head.course, story_seq=0)
    if isinstance(fact, CheckpointStored) and not head.state.ended:
        return replace(head.course, checkpoint=fact.sha256, story_seq=head.story_seq)
    return replace(head.course, story_seq=head.story_seq)


def _narrowed(shape: Shape, fact: JobRequeued) -> Shape:
    if not fact.avoid and not fact.above_vram_gb:
        return shape
    avoid = tuple(sorted({*shape.avoid, fact.avoid} - {""}))
    above = max(shape.above_vram_gb, fact.above_vram_gb)
    return replace(shape, avoid=avoid, above_vram_gb=above)
