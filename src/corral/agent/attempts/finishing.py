"""Attempts that end: by themselves, by force, or with their runner. What they held is free only
when that is proved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from corral.agent.attempts import endings
from corral.agent.attempts.attempt import HeldAttempt
from corral.agent.attempts.phases import PhaseStep
from corral.agent.attempts.reports import Reports
from corral.agent.attempts.roll import Roll
from corral.agent.attempts.running import Running
from corral.agent.environments.builder import Environments
from corral.agent.outbox.results import Results
from corral.agent.runners.frames import (
    AnyFrame,
    ErrorFrame,
    Fetching,
    Metric,
    OutputLine,
    ProgressLine,
    Result,
    StartedFrame,
)
from corral.agent.runners.pool import Runners
from corral.agent.runners.runner import Runner
from corral.core.job import Failure

log = structlog.get_logger("corral.agent.attempts.finishing")


class Finishing:
    """What runners say and how they end, as it decides of their attempts."""

    def __init__(
        self,
        roll: Roll,
        running: Running,
        *,
        environments: Environments,
        runners: Runners,
        reports: Reports,
        results: Results,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        backend_down: Callable[[str, str], None],
    ) -> None:
        self._roll, self._running = roll, running
        self._environments, self._runners = environments, runners
        self._reports, self._results = reports, results
        self._spawn = spawn
        self._backend_down = backend_down
        """Told when a pipeline found no server behind a backend of this kind, and what it said."""

    # --- what runners say ----------------------------------------------------------------------

    def heard(self, runner: Runner, frames: list[AnyFrame]) -> None:
        reports = self._reports
        for frame in frames:
            attempt = runner.attempt
            if attempt is None:
                continue
            if isinstance(frame, (Result, ErrorFrame)):
                self._ended(attempt, runner, frame)
            elif isinstance(frame, StartedFrame):
                reports.begins(attempt, runner)
            elif isinstance(frame, Fetching):
                if attempt.can(PhaseStep.FETCHES):
                    attempt.step(PhaseStep.FETCHES)
            elif isinstance(frame, OutputLine):
                reports.output(attempt, runner, frame)
            elif isinstance(frame, ProgressLine):
                reports.progress(attempt, runner, frame)
            elif isinstance(frame, Metric):
                reports.metric(attempt, runner, frame)

    def _ended(self, attempt: HeldAttempt, runner: Runner, frame: Result | ErrorFrame) -> None:
        if attempt.ending is not None:  # which decides how it ended
            runner.settled = True
            return
        self._reports.runs(attempt, runner)
        if isinstance(frame, Result):
            self._results.completed(attempt, frame.result)
        else:
            failure = endings.of_error(frame.failure, attempt)
            if failure.code == "backend_down":
                self._backend_down(failure.type, failure.message)
            self._results.failed(attempt, failure)
        self._leave(attempt, runner, retire=frame.retire)

    def gone(self, runner: Runner) -> None:
        if runner.attempt is None:
            return self._runners.lost(runner)
        # A warm one that died between two attempts takes none along; a new one that did not come
        # to its first must not be tried for ever.
        self._running.take_back(runner, everything=runner.typical_s > 0)
        self._give_up_unheard(runner)
        attempt = runner.attempt
        if attempt is None:
            del self._roll.active[runner]
            self._reports.forget(runner)
            self._spawn(self._end_runner(runner))
            return self._running.start_ready()
        self._reports.runs(attempt, runner)
        if attempt.started is None:
            self._environments.forget(attempt.spec)  # gone or broken on disk, perhaps
        if attempt.ending is None:
            attempt.ending = endings.of_death(runner, attempt)
            self._spawn(self._end_and_fail(attempt, runner, 0.0))

    def _give_up_unheard(self, runner: Runner) -> None:
        """The runner is gone: all but the last of its attempts ended, and their last words are
        lost."""
        while len(runner.orders) > 1:
            attempt = runner.orders.popleft()
            self._reports.runs(attempt, runner)
            self._roll.forget(attempt)
            self._results.failed(attempt, endings.of_death(runner, attempt))
            self._running.pass_on(attempt, runner)

    # --- by itself -----------------------------------------------------------------------------

    def _leave(self, attempt: HeldAttempt, runner: Runner, *, retire: bool) -> None:
        """The attempt is over: make its runner fit for the next one, or end it."""
        runner.orders.popleft()
        self._roll.forget(attempt)
        now = time.monotonic()
        seconds = max(now - attempt.since, 1e-5)
        runner.typical_s += (0.5 if seconds > runner.typical_s else 0.1) * (
            seconds - runner.typical_s
        )
        if retire or attempt.fresh:
            self._running.take_back(runner, everything=True)
            del self._roll.active[runner]
            self._spawn(self._retire(attempt, runner))
            return
        if runner.orders:
            assert attempt.holding is not None
            del self._roll.running[attempt.key]
            self._running.turn(runner.orders[0], attempt.holding, now)
            self._running.send_ahead(runner)
            return
        del self._roll.active[runner]
        if runner.directory.empty():
            self._runners.give_back(runner)
            self._release(attempt)
        else:
            self._spawn(self._retire(attempt, runner))

    async def _retire(self, attempt: HeldAttempt, runner: Runner) -> None:
        self._reports.forget(runner)
        with self._releasing(attempt):
            await self._runners.end(runner, grace_s=0.0)

    async def _end_runner(self, runner: Runner) -> None:
        await self._runners.end(runner, grace_s=0.0)

    # --- by force ------------------------------------------------------------------------------

    def end(self, attempt: HeldAttempt, failure: Failure, grace_s: float) -> None:
        runner = attempt.runner
        if runner is None or attempt.ending is not None:
            return
        self._running.take_back(runner)
        if attempt.runner is not None and attempt is runner.orders[-1]:
            attempt.ending = failure
            self._spawn(self._end_and_fail(attempt, runner, grace_s))

    async def _end_and_fail(self, attempt: HeldAttempt, runner: Runner, grace_s: float) -> None:
        """The failure is told when the whole process tree is proved gone, not before."""
        with self._releasing(attempt):
            ended = await self._runners.end(runner, grace_s=grace_s)
            self._reports.forget(runner)
            self._give_up_unheard(runner)
            runner.orders.clear()
            self._roll.active.pop(runner, None)
            assert attempt.ending is not None
            self._roll.forget(attempt)
            failure = attempt.ending if ended else endings.survived(attempt.ending)
            self._results.failed(attempt, failure)

    @contextmanager
    def _releasing(self, attempt: HeldAttempt) -> Iterator[None]:
        """Whatever a job left behind to break the cleaning up, its place becomes free again."""
        try:
            yield
        except Exception as error:
            log.error("clean_up_broke", job=attempt.key[0], attempt=attempt.key[1], exc_info=error)
        self._release(attempt)

    def _release(self, attempt: HeldAttempt) -> None:
        self._roll.release(attempt)
        if self._roll.waiting.size:
            self._running.start_ready()
