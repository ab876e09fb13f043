"""The controller's log of what happens to jobs: a line for each submission, placement, start, end.

Facts of one moment that belong to the same call and say the same share a line that names all of
their jobs, so a map of thousands costs a microsecond or two for each, and whoever searches the
log for a job id finds its lines. What went wrong always has a line of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from corral import logs
from corral.controller.journal.record import Change
from corral.core.events import (
    AttemptPlaced,
    AttemptStarted,
    JobCancelled,
    JobFailed,
    JobRejected,
    JobRequeued,
    JobStopping,
    JobSubmitted,
    JobSucceeded,
    ResultOrphaned,
)
from corral.core.job import Head

log = structlog.get_logger()

PER_LINE = 1000
"""Jobs that one line names; more of them go on in the next."""
MOMENT_S = 0.1
"""How long a line may wait for others, and for a moment in which nobody waits for an answer."""
MESSAGE = 500
"""Characters of an error's message that are logged; the job has all of it."""

Key = tuple[type, str, str, int]

EVENTS: dict[type, tuple[str, str]] = {
    JobSubmitted: ("job_submitted", "jobs_submitted"),
    AttemptPlaced: ("attempt_placed", "attempts_placed"),
    AttemptStarted: ("attempt_started", "attempts_started"),
    JobSucceeded: ("attempt_succeeded", "attempts_succeeded"),
    JobStopping: ("job_stopping", "jobs_stopping"),
    JobCancelled: ("job_cancelled", "jobs_cancelled"),
}
"""Kinds that share lines: what one is called, and what many are."""


class JobLog:
    """Listens to a store. `names` are what people call the workers."""

    def __init__(self, names: Callable[[], Mapping[str, str]]) -> None:
        self._names = names
        self._heard: list[Change] = []
        self._timer: asyncio.TimerHandle | None = None

    def take(self, changes: Sequence[Change]) -> None:
        """Remembers them for a moment: nobody's answer waits for a log line."""
        self._heard.extend(changes)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(MOMENT_S, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        changes, self._heard = self._heard, []
        groups: dict[Key, list[Change]] = {}
        for change in changes:
            kind, head = type(change.fact), change.head
            if kind in EVENTS:
                course = head.course
                key = (kind, head.given.correlation_id, course.worker, course.attempt)
                found = groups.get(key)
                if found is None:
                    groups[key] = [change]
                else:
                    found.append(change)
            else:
                self._tell_trouble(change)
        lines = []
        for key, group in groups.items():
            for start in range(0, len(group), PER_LINE):
                some = group[start : start + PER_LINE]
                lines.append(self._line(key[0], some, alone=len(group) == 1))
        if lines:
            logs.inform(lines)

    # --- lines of the usual life ---

    def _line(self, kind: type, group: Sequence[Change], *, alone: bool) -> dict[str, Any]:
        fact, head = group[0].fact, group[0].head
        one, many = EVENTS[kind]
        told: dict[str, Any] = {"event": many, "count": len(group)}
        if alone:
            told = {"event": one, "job": head.id}
        if kind is JobSubmitted:
            given = head.given
            told |= {"name": given.name, "queue_class": head.shape.queue_class.value}
            said = {"user": given.user, "batch": given.batch, "retry_of": given.retry_of}
            told |= {name: value for name, value in said.items() if value}
        else:
            self._tell_attempt(told, head)
        if alone and isinstance(fact, (JobSucceeded, JobCancelled)) and head.worker:
            told["seconds"] = round(fact.seconds, 6)
        told["correlation_id"] = head.given.correlation_id
        if not alone:
            told["jobs"] = [change.head.id for change in group]
        return told

    def _tell_attempt(self, told: dict[str, Any], head: Head) -> None:
        if head.worker:
            told["attempt"] = head.attempt
            told["worker"] = self._names().get(head.worker, head.worker)

    # --- lines of what went wrong ---

    def _tell_trouble(self, change: Change) -> None:
        fact, say = change.fact, log.warning
        told: dict[str, Any] = {"job": fact.job}
        match fact:
            case JobFailed(failure=failure):
                event = "job_failed"
                self._tell_attempt(told, change.head)
                told |= {"code": failure.code, "error": failure.message[:MESSAGE]}
                told["seconds"] = round(fact.seconds, 6)
            case JobRequeued():
                event, say = "job_requeued", log.info if fact.fault == "none" else log.warning
                told |= {"attempt": fact.attempt, "code": fact.code}
                told["error"] = fact.message[:MESSAGE]
            case JobRejected():
                event = "job_rejected"
                told |= {"code": fact.code, "error": fact.message[:MESSAGE]}
            case ResultOrphaned():
                event = "result_orphaned"
                told |= {"attempt": fact.attempt, "outcome": fact.outcome}
            case _:
                return
        say(event, **told, correlation_id=change.head.given.correlation_id)
