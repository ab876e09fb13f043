"""The ledger of this worker's attempts: wires its parts, and does what the controller says.

    admission ──> preparation ──> roll: waiting ──> running <──> finishing ──> results
                                                       └── reports: what they say meanwhile

Everything happens in callbacks of one event loop. Only preparations and ends by force are tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import structlog

from corral.agent.attempts import endings
from corral.agent.attempts.admission import Admission
from corral.agent.attempts.attempt import HeldAttempt
from corral.agent.attempts.finishing import Finishing
from corral.agent.attempts.limits import Limits
from corral.agent.attempts.preparation import Preparation
from corral.agent.attempts.reports import Reports
from corral.agent.attempts.roll import Roll
from corral.agent.attempts.running import Running
from corral.agent.environments.builder import Environments
from corral.agent.files.assets import AssetCache
from corral.agent.order_form import OrderForm
from corral.agent.outbox.results import Results
from corral.agent.runners.orders import encode_line
from corral.agent.runners.pool import Runners
from corral.agent.runners.runner import Listener
from corral.core.job import Failure, JobId
from corral.core.worker import Capabilities
from corral.protocol.messages import (
    JobCancel,
    JobDispatch,
    JobOutput,
    JobProgress,
    JobRecall,
    Message,
)
from corral.runtime.order import Cancel

log = structlog.get_logger("corral.agent.attempts.ledger")


class Ledger:
    def __init__(
        self,
        capabilities: Capabilities,
        *,
        environments: Environments,
        runners: Runners,
        assets: AssetCache,
        send: Callable[[Message], None],
        send_at_once: Callable[[Message], None],
        send_output: Callable[[JobOutput | JobProgress, int], bool],
        loaded: Callable[[], None] = lambda: None,
        backend_down: Callable[[str, str], None] = lambda kind, said: None,
    ) -> None:
        self.orders = OrderForm()
        self.results = Results(send_at_once)
        self.roll = Roll(capabilities)
        self._runners = runners
        self._tasks: set[asyncio.Task[None]] = set()
        self._reports = Reports(send, send_output, self.results.narration)
        self._admission = Admission(self.roll, environments)
        self._preparation = Preparation(
            environments,
            assets,
            ticket=self.orders.ticket,
            say=self._reports.say,
            ready=self._prepared,
            failed=self._failed_before,
        )
        self._running = Running(
            self.roll,
            environments=environments,
            runners=runners,
            orders=self.orders,
            reports=self._reports,
            unprepared=self._prepare,
            returned=self._return,
            failed=self._failed_before,
            started=lambda: self._limits.watch(),
            loaded=loaded,
        )
        self._finishing = Finishing(
            self.roll,
            self._running,
            environments=environments,
            runners=runners,
            reports=self._reports,
            results=self.results,
            spawn=self._spawn,
            backend_down=backend_down,
        )
        self._running.listener = self._finishing
        self._limits = Limits(self.roll.known, self._finishing.end)

    @property
    def listener(self) -> Listener:
        return self._finishing

    # --- what the controller says --------------------------------------------------------------

    def dispatched(self, message: JobDispatch) -> None:
        """Remember it; `start_ready` starts it."""
        key = (message.job, message.attempt)
        if self.results.say_again(*key) or self._admission.is_known(key):
            return
        checked = self._admission.check(message)
        if isinstance(checked, str):
            return self.results.returned(*key, checked)
        if isinstance(checked, Failure):
            return self.results.refused(message, checked)
        self.roll.add(checked)
        if self._preparation.is_needed(checked):
            self._prepare(checked)
        else:
            self.roll.prepared(checked)

    def _prepare(self, attempt: HeldAttempt) -> None:
        self._spawn(self._preparation.prepare(attempt))

    def _prepared(self, attempt: HeldAttempt) -> None:
        self.roll.prepared(attempt)
        self._running.start_ready()

    def _failed_before(self, attempt: HeldAttempt, failure: Failure) -> None:
        """Before any runner had it."""
        self.roll.forget(attempt)
        self.results.failed(attempt, failure)

    def _return(self, attempt: HeldAttempt, reason: str) -> None:
        self.roll.forget(attempt)
        self.results.returned(*attempt.key, reason)

    def start_ready(self) -> None:
        self._running.start_ready()

    def others_hold(self, taken: Iterable[tuple[str, float]]) -> None:
        """Processes that are not ours hold this much of the GPUs now. What waits for what they
        hold goes back: nobody knows when they let go."""
        self.roll.capacity.others = dict(taken)
        self._admission.others_changed()
        for attempt in self.roll.unbegun():
            if too_much := self._admission.too_much(attempt):
                self._return(attempt, too_much)
        self._running.start_ready()

    def cancelled(self, message: JobCancel) -> None:
        attempt = self._known(message)
        if attempt is None:
            return
        if attempt.runner is None:
            self._failed_before(attempt, endings.CANCELLED_BEFORE)
        elif attempt is attempt.runner.orders[-1]:
            attempt.runner.write(
                encode_line(Cancel(job=message.job, attempt=message.attempt, cancel=True))
            )
            self._finishing.end(attempt, endings.CANCELLED, message.grace_s)

    def recalled(self, message: JobRecall) -> None:
        attempt = self._known(message)
        if attempt is not None and attempt.runner is None:
            self._return(attempt, "recalled")

    def _known(self, message: JobCancel | JobRecall) -> HeldAttempt | None:
        """Out of its runner again, where that has not begun it."""
        attempt = self.roll.known.get((message.job, message.attempt))
        if attempt is not None and attempt.runner is not None:
            self._running.take_back(attempt.runner)
            if attempt.key not in self.roll.known:
                return None
        return attempt

    # --- what the controller is told -----------------------------------------------------------

    @property
    def running(self) -> int:
        return len(self.roll.running)

    @property
    def waiting(self) -> int:
        return len(self.roll.unbegun())

    def attempts(self) -> tuple[tuple[JobId, int], ...]:
        """All attempts this worker still answers for."""
        return tuple({**self.roll.known, **self.results.all()})

    def started(self) -> list[Message]:
        return [attempt.started for attempt in self.roll.known.values() if attempt.started]

    def environments_in_use(self) -> set[str]:
        specs = {attempt.spec for attempt in self.roll.known.values()}
        return {spec.digest for spec in specs} | self._runners.environments()

    def assets_in_use(self) -> set[str]:
        known = list(self.roll.known.values())
        return {one.sha256 for attempt in known for one in attempt.recipe.inputs}

    def resume_output(self) -> None:
        self._reports.resume()

    # --- leaving -------------------------------------------------------------------------------

    def return_waiting(self, reason: str) -> None:
        """From now on everything that has not started goes back."""
        self.roll.draining = reason
        for runner in self.roll.active:
            self._running.take_back(runner)
        for attempt in self.roll.unbegun():
            self._return(attempt, reason)

    def end_running(self, failure: Failure, grace_s: float) -> None:
        for attempt in list(self.roll.known.values()):
            self._finishing.end(attempt, failure, grace_s)

    async def close(self) -> None:
        self._limits.close()
        self._running.close()
        self.results.narration.flush()
        await self.results.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("attempt_step_broke", exc_info=error)
