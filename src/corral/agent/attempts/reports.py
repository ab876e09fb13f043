"""What is told of attempts: starts and output to the controller, starts and ends to our log."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from corral import logs
from corral.agent.attempts.attempt import HeldAttempt, Phase, PhaseStep
from corral.agent.runners.frames import Metric, OutputLine, ProgressLine
from corral.agent.runners.runner import Runner
from corral.core.frames import told_by
from corral.protocol.messages import JobDispatch, JobOutput, JobProgress, JobStarted

if TYPE_CHECKING:
    from corral.agent.connection import AgentConnection

MESSAGE_COST = 128
"""What a message takes up beside the bytes it carries."""
MOMENT_S = 0.1
PER_LINE = 1000
_STARTED = ("attempt_started", "attempts_started")
_SUCCEEDED = ("attempt_succeeded", "attempts_succeeded")

Names = tuple[str, str]
Groups = defaultdict[tuple[Names, str, int], list[tuple[str, float]]]


class AttemptLog:
    """Attempts of one call that start or end within a moment share a line that names all of them.
    What failed has a line of its own, at once (see `outbox`)."""

    def __init__(self) -> None:
        self._groups: Groups = defaultdict(list)
        self._timer: asyncio.TimerHandle | None = None

    def started(self, dispatch: JobDispatch) -> None:
        self._add(_STARTED, dispatch, -1.0)

    def succeeded(self, dispatch: JobDispatch, seconds: float) -> None:
        self._add(_SUCCEEDED, dispatch, seconds)

    def _add(self, names: Names, dispatch: JobDispatch, seconds: float) -> None:
        group = self._groups[names, dispatch.correlation_id, dispatch.attempt]
        group.append((dispatch.job, seconds))
        if len(group) == PER_LINE:
            self.flush()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(MOMENT_S, self.flush)

    def flush(self) -> None:
        """Says what is left; before the agent ends, too."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        groups, self._groups = self._groups, defaultdict(list)
        lines: list[dict[str, Any]] = []
        for ((one, many), correlation_id, attempt), group in groups.items():
            shared = {"attempt": attempt, "correlation_id": correlation_id}
            job, seconds = group[0]
            if len(group) > 1:
                jobs = [job for job, _ in group]
                lines.append({"event": many, "count": len(group), **shared, "jobs": jobs})
            elif seconds < 0:
                lines.append({"event": one, "job": job, **shared})
            else:
                lines.append({"event": one, "job": job, "seconds": round(seconds, 6), **shared})
        if lines:
            logs.inform(lines)


class Reports:
    def __init__(self, connection: AgentConnection, narration: AttemptLog) -> None:
        self._send, self._send_output = connection.send, connection.send_output
        self._narration = narration
        self._paused: set[Runner] = set()

    def runs(self, attempt: HeldAttempt, runner: Runner) -> None:
        """Something was heard of it, or it takes long: that it began is told before all else."""
        if attempt.phase is Phase.ASSUMED:
            self._tell_start(attempt, runner, PhaseStep.TOLD)

    def begins(self, attempt: HeldAttempt, runner: Runner) -> None:
        """Its runner says so. A job that says it again would have its duration again."""
        if attempt.can(PhaseStep.BEGINS):
            attempt.since = time.monotonic()
            attempt.deadline = attempt.since + attempt.dispatch.duration_s
            self._tell_start(attempt, runner, PhaseStep.BEGINS)

    def _tell_start(self, attempt: HeldAttempt, runner: Runner, step: PhaseStep) -> None:
        attempt.step(step)
        attempt.started = JobStarted(
            *attempt.key,
            time.time() - time.monotonic() + attempt.since,
            runner.makeup.devices,
            runner.used > 1,
        )
        self._send(attempt.started)
        self._narration.started(attempt.dispatch)

    def say(self, attempt: HeldAttempt, message: str) -> None:
        """Of an attempt that no runner has yet."""
        attempt.told += 1
        told = JobProgress(*attempt.key, message=message, n=attempt.told)
        self._send_output(told, len(message) + MESSAGE_COST)

    def told(
        self, attempt: HeldAttempt, runner: Runner, frame: OutputLine | ProgressLine | Metric
    ) -> None:
        """On to the controller; a job that talks faster than that way is wide has to wait."""
        self.runs(attempt, runner)
        attempt.told += told_by(frame.text, frame.data) if isinstance(frame, OutputLine) else 1
        key, n = attempt.key, attempt.told
        message: JobOutput | JobProgress
        if isinstance(frame, OutputLine):
            message = JobOutput(*key, frame.stream, frame.text, frame.data, n)
            size = len(frame.text) + len(frame.data)
        elif isinstance(frame, ProgressLine):
            message = JobProgress(*key, frame.fraction, frame.message, n=n)
            size = len(frame.message)
        else:
            message = JobProgress(*key, metrics=frame.values, step=frame.step, n=n)
            size = 64 * len(frame.values)
        if self._send_output(message, size + MESSAGE_COST):
            runner.pause()
            self._paused.add(runner)

    def remark(self, attempt: HeldAttempt, words: str) -> None:
        """A word of Corral's own among what the job itself prints."""
        if attempt.runner is not None and attempt.runner.attempt is attempt:
            self.told(attempt, attempt.runner, OutputLine("stderr", f"corral: {words}\n"))

    def resume(self) -> None:
        for runner in self._paused:
            runner.resume()
        self._paused.clear()

    def forget(self, runner: Runner) -> None:
        self._paused.discard(runner)
