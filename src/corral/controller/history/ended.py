"""A row of the history of ended jobs, and how it follows from a job and the fact that ended it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from corral.core.events import JobFailed, JobRejected, Journaled
from corral.core.job import Head

MESSAGE_KEPT = 400
"""Characters of a failure's message that the history is searched by; the journal has all."""


class EndedJob(NamedTuple):
    """A row of the history: where an ended job lies in the journal, and what people look for it
    by."""

    job: str
    state: str
    submitted_seq: int
    last_seq: int
    ended_at: float
    batch: str
    key: str
    submitted_at: float
    seconds: float
    queue_class: str
    worker: str
    user: str
    name: str
    labels: str
    """One `key=value` between newlines."""
    code: str
    message: str
    """The beginning of what was told about its failure."""

    @classmethod
    def of(cls, head: Head, fact: Journaled) -> EndedJob:
        """The row for a job that this fact ended."""
        code = message = ""
        if isinstance(fact, JobFailed):
            code, message = fact.failure.code, fact.failure.message[:MESSAGE_KEPT]
        elif isinstance(fact, JobRejected):
            code, message = fact.code, fact.message[:MESSAGE_KEPT]
        given = head.given
        return cls(
            head.id,
            head.state.value,
            head.submitted_seq,
            head.last_seq,
            float(fact.at),
            given.batch,
            head.key,
            float(head.submitted_at),
            float(getattr(fact, "seconds", 0.0)),
            head.shape.queue_class.value,
            head.course.worker,
            given.user,
            given.name,
            labels_text(given.labels) if given.labels else "",
            code,
            message,
        )


def labels_text(labels: Sequence[tuple[str, str]]) -> str:
    return "".join(f"\n{key}={value}\n" for key, value in labels)
