"""What the controller is told of attempts while they run: that they began, and what they say."""

from __future__ import annotations

import time
from collections.abc import Callable

from corral.agent.attempts.attempt import HeldAttempt
from corral.agent.attempts.attempt_log import AttemptLog
from corral.agent.attempts.phases import Phase, PhaseStep
from corral.agent.runners.frames import Metric, OutputLine, ProgressLine
from corral.agent.runners.runner import Runner
from corral.core.frames import told_by
from corral.protocol.messages import JobOutput, JobProgress, JobStarted, Message

MESSAGE_COST = 128
"""What a message takes up beside the bytes it carries."""


class Reports:
    def __init__(
        self,
        send: Callable[[Message], None],
        send_output: Callable[[JobOutput | JobProgress, int], bool],
        narration: AttemptLog,
    ) -> None:
        self._send, self._send_output, self._narration = send, send_output, narration
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

    def output(self, attempt: HeldAttempt, runner: Runner, frame: OutputLine) -> None:
        self.runs(attempt, runner)
        attempt.told += told_by(frame.text, frame.data)
        message = JobOutput(*attempt.key, frame.stream, frame.text, frame.data, attempt.told)
        self._forward(runner, message, len(frame.text) + len(frame.data))

    def progress(self, attempt: HeldAttempt, runner: Runner, frame: ProgressLine) -> None:
        self.runs(attempt, runner)
        attempt.told += 1
        told = JobProgress(*attempt.key, frame.fraction, frame.message, n=attempt.told)
        self._forward(runner, told, len(frame.message))

    def metric(self, attempt: HeldAttempt, runner: Runner, frame: Metric) -> None:
        self.runs(attempt, runner)
        attempt.told += 1
        told = JobProgress(*attempt.key, metrics=frame.values, step=frame.step, n=attempt.told)
        self._forward(runner, told, 64 * len(frame.values))

    def _forward(self, runner: Runner, message: JobOutput | JobProgress, size: int) -> None:
        """On to the controller; a job that talks faster than that way is wide has to wait."""
        if self._send_output(message, size + MESSAGE_COST):
            runner.pause()
            self._paused.add(runner)

    def resume(self) -> None:
        for runner in self._paused:
            runner.resume()
        self._paused.clear()

    def forget(self, runner: Runner) -> None:
        self._paused.discard(runner)
