"""Attempts in runners: started when there is room, sent ahead of their turn, taken back, ended.

An attempt that ends frees its room and the next one starts within the same callback. What one that
is ended by force held is free only when its processes are proved gone.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from msgspec.structs import asdict, replace

from corral.agent.attempts import endings
from corral.agent.attempts.attempt import HeldAttempt, Phase, PhaseStep
from corral.agent.attempts.limits import Limits
from corral.agent.attempts.reports import Reports
from corral.agent.attempts.roll import Roll
from corral.agent.environments.builder import Environment, Environments
from corral.agent.outbox import Results
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
from corral.agent.runners.orders import AHEAD_LIMIT, OrderForm
from corral.agent.runners.pool import Runners
from corral.agent.runners.runner import Makeup, Runner
from corral.core.job import Failure
from corral.core.worker import Holding
from corral.runtime.endings import no_runner, survived

log = structlog.get_logger("corral.agent.attempts.running")

TELL_START_S = 0.005
"""An attempt that takes longer is told to have begun before it has ended."""


class Running:
    """Hears what runners say and how they end, as it decides of their attempts."""

    def __init__(
        self,
        roll: Roll,
        *,
        environments: Environments,
        runners: Runners,
        orders: OrderForm,
        reports: Reports,
        results: Results,
        prepare: Callable[[HeldAttempt], None],
        spawn: Callable[[Coroutine[Any, Any, object]], None],
        loaded: Callable[[], None],
        backend_down: Callable[[str, str], None],
    ) -> None:
        self._roll = roll
        self._environments, self._runners = environments, runners
        self._orders, self._reports, self._results = orders, reports, results
        self._prepare, self._spawn = prepare, spawn
        self._loaded = loaded
        """Told when a runner is about to have other models loaded."""
        self._backend_down = backend_down
        """Told when a pipeline found no server behind a backend of this kind, and what it said."""
        self._limits = Limits(roll.known, self.end, reports.remark)
        self._looking: asyncio.TimerHandle | None = None

    def start_ready(self) -> None:
        waiting = self._roll.waiting
        while waiting.size:
            now = time.monotonic()
            found = waiting.next(self._roll.capacity)
            if found is None:
                for runner in self._roll.active:
                    self._send_ahead(runner)
                return
            self._start(*found, now)

    def _start(self, attempt: HeldAttempt, holding: Holding, now: float) -> None:
        environment = self._environments.ready(attempt.spec)
        if environment is None:
            attempt.step(PhaseStep.UNPREPARED)
            return self._prepare(attempt)
        try:
            runner = self._runner_for(attempt, environment, holding)
        except OSError as error:
            return self.fail(attempt, Failure(**no_runner(error)))
        self._roll.capacity.take(holding)
        self._roll.active[runner] = None
        attempt.runner = runner
        needs = attempt.dispatch.needs
        if needs.models and needs.models != runner.models:
            runner.models = needs.models
            self._loaded()
        runner.order(attempt, self._orders.line(attempt, runner.directory.path))
        self._limits.watch()
        self._turn(attempt, holding, now)

    def _runner_for(
        self, attempt: HeldAttempt, environment: Environment, holding: Holding
    ) -> Runner:
        dispatch, recipe = attempt.dispatch, attempt.recipe
        env = recipe.env if attempt.workload.brings_code else {}
        makeup = Makeup(
            environment.digest,
            tuple(sorted(env.items())) if env else (),
            holding.devices,
            dispatch.needs.memory_gb,
            self._runners.processors.count(dispatch.needs.cpus),
            self._runners.digest(dispatch.secrets) if dispatch.secrets else "",
            attempt.owner,
            attempt.reads,
            recipe.work.code.sha256 if recipe.work.code else "",
        )
        return self._runners.take(
            makeup, environment, fresh=attempt.fresh, secrets=dispatch.secrets
        )

    def _turn(self, attempt: HeldAttempt, holding: Holding, now: float) -> None:
        """It is the one that runs in its runner. A warm runner says nothing of that, because most
        such attempts end before anybody could care; for the others `_look` looks."""
        runner = attempt.runner
        assert runner is not None
        attempt.since = now
        attempt.deadline = now + attempt.dispatch.duration_s
        attempt.kills_before = self._limits.kills.seen
        attempt.holding = holding
        self._roll.running[attempt.key] = attempt
        if runner.typical_s > 0:
            attempt.step(PhaseStep.TURN_WARM)
            self._look_soon()
        else:
            attempt.step(PhaseStep.TURN_COLD)

    def _look(self) -> None:
        """Attempts that last: the controller hears that they run, nobody waits behind them."""
        self._looking = None
        now = time.monotonic()
        again = False
        for runner in list(self._roll.active):
            attempt = runner.attempt
            if attempt is None:
                continue
            if now - attempt.since < TELL_START_S:
                again |= attempt.phase is Phase.ASSUMED or len(runner.orders) > 1
                continue
            if attempt.ending is None:
                self._reports.runs(attempt, runner)
            self.take_back(runner)
        if self._roll.waiting.size:
            self.start_ready()
        if again:
            self._look_soon()

    def _look_soon(self) -> None:
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(TELL_START_S, self._look)

    # --- ahead of their turn, and back ---------------------------------------------------------

    def _send_ahead(self, runner: Runner) -> None:
        """Short attempts wait in the runner, which then need not wait for us between two. Not
        behind one that has turned out to be long."""
        last = runner.orders[-1] if runner.orders and runner.code is None else None
        if last is None or time.monotonic() - runner.orders[0].since >= TELL_START_S:
            return
        waiting = self._roll.waiting
        while last.ending is None and not last.fresh and waiting.size:
            if not runner.takes_ahead() or len(last.dispatch.document) > AHEAD_LIMIT:
                return
            attempt = waiting.next_like(last, AHEAD_LIMIT)
            if attempt is None:
                return
            attempt.step(PhaseStep.SENT_AHEAD)
            attempt.runner = runner
            runner.used += 1
            runner.order(attempt, self._orders.line(attempt, runner.directory.path))
            self._look_soon()
            last = attempt

    def take_back(self, runner: Runner, *, everything: bool = False) -> None:
        """What a runner has not begun waits for any other again."""
        first = runner.attempt
        back = runner.take_back(everything=everything)
        if back and back[0] is first:
            self._pass_on(first, runner)  # it took a later one first, or is gone
        for attempt in back:
            attempt.runner = None
            runner.used -= 1
            attempt.step(PhaseStep.TAKEN_BACK)
            if self._roll.draining:
                self.give_back(attempt, self._roll.draining)
            else:
                self._roll.waiting.add(attempt)

    def _pass_on(self, attempt: HeldAttempt, runner: Runner) -> None:
        """What an attempt held is now held by the one that runs in its place, if there is one."""
        holding, attempt.holding = attempt.holding, None
        if holding is None:
            return
        attempt.started = None
        attempt.since, attempt.deadline = 0.0, math.inf
        del self._roll.running[attempt.key]
        if runner.orders:
            self._turn(runner.orders[0], holding, time.monotonic())
        else:
            self._roll.capacity.give(holding)

    def give_back(self, attempt: HeldAttempt, reason: str) -> None:
        """To the controller, without having run."""
        self._roll.forget(attempt)
        self._results.returned(*attempt.key, reason)

    def fail(self, attempt: HeldAttempt, failure: Failure) -> None:
        self._roll.forget(attempt)
        self._results.failed(attempt, failure)

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
            elif isinstance(frame, (OutputLine, ProgressLine, Metric)):
                reports.told(attempt, runner, frame)

    def _ended(self, attempt: HeldAttempt, runner: Runner, frame: Result | ErrorFrame) -> None:
        if attempt.ending is not None:  # which decides how it ended
            runner.settled = True
            return
        self._reports.runs(attempt, runner)
        if isinstance(frame, Result):
            self._results.completed(attempt, frame.result)
        else:
            failure = endings.of_error(frame, attempt, self._limits.kills)
            if failure.code in ("backend_down", "backend_silent"):
                self._backend_down(failure.type, failure.message)
            self._results.failed(attempt, failure)
        self._leave(attempt, runner, retire=frame.retire)

    def gone(self, runner: Runner) -> None:
        if runner.attempt is None:
            return self._runners.lost(runner)
        # A warm one that died between two attempts takes none along; a new one that did not come
        # to its first must not be tried for ever.
        self.take_back(runner, everything=runner.typical_s > 0)
        self._give_up_unheard(runner)
        attempt = runner.attempt
        if attempt is None:
            del self._roll.active[runner]
            self._reports.forget(runner)
            self._spawn(self._runners.end(runner, grace_s=0.0))
            return self.start_ready()
        self._reports.runs(attempt, runner)
        if attempt.started is None:
            self._environments.forget(attempt.spec)  # gone or broken on disk, perhaps
        if attempt.ending is None:
            attempt.ending = endings.of_death(runner, attempt, self._limits.kills)
            self._spawn(self._end_and_fail(attempt, runner, 0.0))

    def _give_up_unheard(self, runner: Runner) -> None:
        """Of a runner that is gone all but the last attempt ended; their last words are lost."""
        while len(runner.orders) > 1:
            attempt = runner.orders.popleft()
            self._reports.runs(attempt, runner)
            self.fail(attempt, endings.of_death(runner, attempt, self._limits.kills))
            self._pass_on(attempt, runner)

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
            self.take_back(runner, everything=True)
            del self._roll.active[runner]
            self._spawn(self._retire(attempt, runner))
            return
        if runner.orders:
            assert attempt.holding is not None
            del self._roll.running[attempt.key]
            self._turn(runner.orders[0], attempt.holding, now)
            self._send_ahead(runner)
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

    def extend(self, attempt: HeldAttempt, duration_s: float) -> None:
        """It may run so long from its start; said once, however often the controller does."""
        former_s = attempt.dispatch.duration_s
        if duration_s != former_s:
            attempt.dispatch = replace(attempt.dispatch, duration_s=duration_s)
            self._limits.extended(attempt, former_s)

    # --- by force ------------------------------------------------------------------------------

    def end(self, attempt: HeldAttempt, failure: Failure, grace_s: float) -> None:
        runner = attempt.runner
        if runner is None or attempt.ending is not None:
            return
        self.take_back(runner)
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
            failure = attempt.ending
            assert failure is not None
            self.fail(attempt, failure if ended else Failure(**survived(asdict(failure))))

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
            self.start_ready()

    def close(self) -> None:
        self._limits.close()
        if self._looking is not None:
            self._looking.cancel()
