"""Attempts in runners: started when there is room, sent ahead of their turn, taken back.

An attempt that ends frees its room and the next one starts within the same callback.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from corral.agent.attempts import endings
from corral.agent.attempts.attempt import HeldAttempt
from corral.agent.attempts.phases import Phase, PhaseStep
from corral.agent.attempts.reports import Reports
from corral.agent.attempts.roll import Roll
from corral.agent.environments.builder import Environment, Environments
from corral.agent.order_form import OrderForm
from corral.agent.runners.orders import AHEAD_LIMIT
from corral.agent.runners.pool import Runners
from corral.agent.runners.runner import Listener, Makeup, Runner
from corral.core.job import Failure
from corral.core.worker import Holding

TELL_START_S = 0.005
"""An attempt that takes longer is told to have begun before it has ended."""


class Running:
    listener: Listener
    """Told what the runners say, and how they end."""

    def __init__(
        self,
        roll: Roll,
        *,
        environments: Environments,
        runners: Runners,
        orders: OrderForm,
        reports: Reports,
        unprepared: Callable[[HeldAttempt], None],
        returned: Callable[[HeldAttempt, str], None],
        failed: Callable[[HeldAttempt, Failure], None],
        started: Callable[[], None],
        loaded: Callable[[], None],
    ) -> None:
        self._roll = roll
        self._environments, self._runners = environments, runners
        self._orders, self._reports = orders, reports
        self._unprepared, self._returned, self._failed = unprepared, returned, failed
        self._started = started
        self._loaded = loaded
        """Told when a runner is about to have other models loaded."""
        self._looking: asyncio.TimerHandle | None = None

    def start_ready(self) -> None:
        waiting = self._roll.waiting
        while waiting.size:
            now = time.monotonic()
            found = waiting.next(self._roll.capacity)
            if found is None:
                for runner in self._roll.active:
                    self.send_ahead(runner)
                return
            self._start(*found, now)

    def _start(self, attempt: HeldAttempt, holding: Holding, now: float) -> None:
        environment = self._environments.ready(attempt.spec)
        if environment is None:
            attempt.step(PhaseStep.UNPREPARED)
            return self._unprepared(attempt)
        try:
            runner = self._runner_for(attempt, environment, holding)
        except OSError as error:
            return self._failed(attempt, endings.no_runner(error))
        self._roll.capacity.take(holding)
        self._roll.active[runner] = None
        attempt.runner = runner
        needs = attempt.dispatch.needs
        if needs.models and needs.models != runner.models:
            runner.models = needs.models
            self._loaded()
        runner.order(attempt, self._orders.line(attempt, runner.directory.path))
        self.turn(attempt, holding, now)
        self._started()

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
            self._runners.processors_for(dispatch.needs.cpus),
            self._runners.digest(dispatch.secrets) if dispatch.secrets else "",
            attempt.owner,
        )
        return self._runners.take(
            makeup, environment, self.listener, fresh=attempt.fresh, secrets=dispatch.secrets
        )

    def turn(self, attempt: HeldAttempt, holding: Holding, now: float) -> None:
        """It is the one that runs in its runner. A warm runner says nothing of that, because most
        such attempts end before anybody could care; for the others `_look` looks."""
        runner = attempt.runner
        assert runner is not None
        attempt.since = now
        attempt.deadline = now + attempt.dispatch.duration_s
        self._roll.take(attempt, holding)
        if runner.typical_s > 0:
            attempt.step(PhaseStep.TURN_WARM)
            self._look_soon()
        else:
            attempt.step(PhaseStep.TURN_COLD)

    def _look(self) -> None:
        """Attempts that are not over in a moment: the controller hears that they run, and nobody
        waits behind them."""
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

    def send_ahead(self, runner: Runner) -> None:
        """Short attempts wait in the runner itself: between two it then waits for nobody. Not
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
            self.pass_on(first, runner)  # it took a later one first, or is gone
        for attempt in back:
            attempt.runner = None
            runner.used -= 1
            attempt.step(PhaseStep.TAKEN_BACK)
            if self._roll.draining:
                self._returned(attempt, self._roll.draining)
            else:
                self._roll.waiting.add(attempt)

    def pass_on(self, attempt: HeldAttempt, runner: Runner) -> None:
        """What an attempt held is now held by the one that runs in its place, if there is one."""
        holding, attempt.holding = attempt.holding, None
        if holding is None:
            return
        attempt.started = None
        attempt.since, attempt.deadline = 0.0, math.inf
        del self._roll.running[attempt.key]
        if runner.orders:
            self.turn(runner.orders[0], holding, time.monotonic())
        else:
            self._roll.capacity.give(holding)

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
