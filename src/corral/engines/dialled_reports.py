"""What a worker's message about an attempt is as a report: bounded, whatever the worker says."""

from __future__ import annotations

from corral.core.events import (
    AttemptBegan,
    AttemptExited,
    AttemptOutput,
    AttemptReturned,
    EngineReport,
)
from corral.core.frames import OutputFrame, ProgressFrame
from corral.engines import ends
from corral.protocol import messages as wire

REASON = 1_000
"""Characters of a reason that are kept."""

AboutAttempt = (
    wire.JobStarted
    | wire.JobOutput
    | wire.JobProgress
    | wire.JobCompleted
    | wire.JobFailed
    | wire.JobReturned
)


def report_of(worker: str, message: AboutAttempt, now: float, *, asked: bool) -> EngineReport:
    """`asked`: whether the attempt was asked back, where it is returned."""
    job, attempt = message.job, message.attempt
    if isinstance(message, wire.JobStarted):
        at = ends.moment(message.at, now)
        return AttemptBegan(job, attempt, worker, at, message.devices, message.warm)
    if isinstance(message, (wire.JobCompleted, wire.JobFailed)):
        return _ended(worker, message, now)
    if isinstance(message, wire.JobOutput):
        frame = OutputFrame(now, message.stream, message.text, message.data, message.n)
        return AttemptOutput(job, attempt, worker, frame)
    if isinstance(message, wire.JobProgress):
        progress = ProgressFrame(
            now,
            message.fraction,
            message.message[: ends.DOING],
            ends.named(message.metrics),
            message.step,
            message.n,
        )
        return AttemptOutput(job, attempt, worker, progress)
    return AttemptReturned(job, attempt, worker, message.reason[:REASON], not asked)


def _ended(worker: str, message: wire.JobCompleted | wire.JobFailed, now: float) -> AttemptExited:
    at, seconds = ends.moment(message.at, now), ends.took(message.seconds)
    if isinstance(message, wire.JobCompleted):
        failure = ends.refused(message.result)
        result = message.result if failure is None else None
    else:
        failure, result = ends.short(message.failure), None
    return AttemptExited(
        message.job,
        message.attempt,
        worker,
        at,
        seconds,
        message.digest,
        result,
        failure,
        message.output,
    )
