"""Messages about attempts as reports, cut to what a runner would say: they go to the journal and
into memory, and neither a worker nor a job that forges its runner is trusted. And receipts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice

from msgspec.structs import replace

from corral.core.events import (
    AttemptBegan,
    AttemptExited,
    AttemptOutput,
    AttemptReturned,
    EngineReport,
)
from corral.core.frames import MOST_METRICS, MetricValue, OutputFrame, ProgressFrame
from corral.core.job import INLINE_LIMIT, MAX_DURATION_S, Blob, Failure, JobId
from corral.core.text import is_digest
from corral.protocol import messages as wire
from corral.protocol.attempt_messages import EndedMessage, ProgressMessage

Key = tuple[JobId, int]

CODE, TYPE, MESSAGE, TRACEBACK, PICKLED = 100, 500, 17_000, 66_000, 66_000
"""Characters, and bytes, of each; a little more than the runtime has of them."""
REASON, DOING, METRIC = 1_000, 1_000, 200
"""Characters of a reason, of what a job says it is doing, and of the name of a metric."""

ASTRAY_S = 366 * 24 * 3600.0

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
        at = moment(message.at, now)
        return AttemptBegan(job, attempt, worker, at, message.devices, message.warm)
    if isinstance(message, wire.JobCompleted):
        return exited(job, attempt, worker, message, message.result, None, message.output, now)
    if isinstance(message, wire.JobFailed):
        return exited(job, attempt, worker, message, None, message.failure, message.output, now)
    if isinstance(message, wire.JobOutput):
        frame = OutputFrame(now, message.stream, message.text, message.data, message.n)
        return AttemptOutput(job, attempt, worker, frame)
    if isinstance(message, wire.JobProgress):
        return AttemptOutput(job, attempt, worker, progress(message, message.n, now))
    return AttemptReturned(job, attempt, worker, message.reason[:REASON], not asked)


def exited(
    job: JobId,
    attempt: int,
    worker: str,
    message: wire.JobCompleted | wire.JobFailed | EndedMessage,
    result: Blob | None,
    failure: Failure | None,
    output: int,
    now: float,
) -> AttemptExited:
    failure = _refused(result) if failure is None else _short(failure)
    return AttemptExited(
        job,
        attempt,
        worker,
        moment(message.at, now),
        # As long as an attempt can have taken: sums and estimates are made of it.
        min(max(message.seconds, 0.0), MAX_DURATION_S),
        message.digest,
        result if failure is None else None,
        failure,
        output,
    )


def progress(message: wire.JobProgress | ProgressMessage, n: int, now: float) -> ProgressFrame:
    doing, metrics = message.message[:DOING], _named(message.metrics)
    return ProgressFrame(now, message.fraction, doing, metrics, message.step, n)


def moment(at: float, now: float) -> float:
    """A worker's clock goes wrong by hours, not by years, and not beyond any calendar."""
    return at if abs(at - now) < ASTRAY_S else now


def _short(failure: Failure) -> Failure:
    return replace(
        failure,
        code=failure.code[:CODE],
        type=failure.type[:TYPE],
        message=failure.message[:MESSAGE],
        traceback=failure.traceback[:TRACEBACK],
        pickled=failure.pickled if len(failure.pickled or b"") <= PICKLED else None,
    )


def _named(metrics: dict[str, MetricValue]) -> dict[str, MetricValue]:
    if len(metrics) <= MOST_METRICS and all(len(name) <= METRIC for name in metrics):
        return metrics
    return {name[:METRIC]: value for name, value in islice(metrics.items(), MOST_METRICS)}


def _refused(result: Blob | None) -> Failure | None:
    """Why this can be nobody's result; the bytes of a large one are stored before it is told."""
    if result is None or (is_digest(result.sha256) and len(result.data or b"") <= INLINE_LIMIT):
        return None
    told = "The result came as no sha256, or with more bytes than ride along. Update the worker."
    return Failure(code="result_refused", message=told)


RECEIPT_S = 0.1
RECEIPT_BYTES = 1 << 20


class OutputReceipts:
    """One message for many attempts."""

    def __init__(self, send: Callable[[str, wire.OutputReceived], None]) -> None:
        self._send = send
        self._upto: dict[str, dict[Key, int]] = {}
        """By worker: what it does not know yet."""
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def note(self, worker: str, key: Key, upto: int) -> None:
        known = self._upto.setdefault(worker, {})
        known[key] = max(upto, known.get(key, 0))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RECEIPT_S, self.flush)

    def taken(self, size: int) -> None:
        """So much was noted by now: workers need not keep much more than this."""
        self._bytes += size
        if self._bytes >= RECEIPT_BYTES:
            self.flush()

    def drop(self, worker: str, key: Key) -> None:
        """That its end was received says all."""
        if worker in self._upto:
            self._upto[worker].pop(key, None)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        told, self._upto, self._bytes = self._upto, {}, 0
        for worker, upto in told.items():
            if upto:
                numbers = tuple((job, attempt, n) for (job, attempt), n in upto.items())
                self._send(worker, wire.OutputReceived(numbers))
