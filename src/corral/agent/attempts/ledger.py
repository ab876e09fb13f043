"""The ledger of this worker's attempts: wires its parts, and does what the controller says.

    ledger: checked, prepared ──> roll: waiting ──> running ──> results
                                                       └── reports: what they say meanwhile

Everything happens in callbacks of one event loop. Tasks only prepare attempts and end runners.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import structlog

from corral.agent.attempts import endings
from corral.agent.attempts.attempt import HeldAttempt, Lane, Phase, decode_recipe
from corral.agent.attempts.reports import Reports
from corral.agent.attempts.roll import Roll
from corral.agent.attempts.running import Running
from corral.agent.connection import AgentConnection
from corral.agent.environments.builder import OWN, Environments
from corral.agent.files.assets import AssetCache
from corral.agent.outbox import Results
from corral.agent.runners.orders import OrderForm, encode_line
from corral.agent.runners.pool import Runners
from corral.core.job import KINDS, Failure, Input, JobId, document_digest
from corral.core.malformed import MALFORMED
from corral.core.worker import Capabilities, Capacity, closed_path
from corral.protocol.messages import JobCancel, JobDispatch, JobExtend, JobRecall, Message
from corral.runtime.endings import not_prepared
from corral.runtime.environments import uv
from corral.runtime.failures import AttemptFailed
from corral.runtime.files.downloads import Abandoned
from corral.runtime.order import Cancel
from corral.runtime.sandbox.asked_paths import found

log = structlog.get_logger("corral.agent.attempts.ledger")

REMEMBERED = 10_000
"""Attempts that are remembered after their end: so many, and as many again."""


class Ledger:
    def __init__(
        self,
        capabilities: Capabilities,
        connection: AgentConnection,
        *,
        environments: Environments,
        runners: Runners,
        assets: AssetCache,
        loaded: Callable[[], None],
        backend_down: Callable[[str, str], None],
        own_home: str = "",
    ) -> None:
        self.orders = OrderForm()
        self.results = Results(connection.send_at_once)
        self.roll = Roll(capabilities)
        self.reports = Reports(connection, self.results.narration)
        self._environments, self._runners, self._assets = environments, runners, assets
        self._own_home = own_home
        """Of the controller, where this is its own machine."""
        self._tasks: set[asyncio.Task[object]] = set()
        self._arrivals = itertools.count()
        self._fitting: set[Lane] = set()
        """Lanes that are known to fit where nothing else runs."""
        self._seen: set[tuple[JobId, int]] = set()
        self._seen_earlier: set[tuple[JobId, int]] = set()
        self.running = Running(
            self.roll,
            environments=environments,
            runners=runners,
            orders=self.orders,
            reports=self.reports,
            results=self.results,
            prepare=lambda attempt: self._spawn(self._prepare(attempt)),
            spawn=self._spawn,
            loaded=loaded,
            backend_down=backend_down,
        )
        runners.listener = self.running
        connection.ledger = self

    # --- what the controller says --------------------------------------------------------------

    def dispatched(self, message: JobDispatch) -> None:
        """Remember it; `running.start_ready` starts it."""
        key = (message.job, message.attempt)
        if self.results.say_again(*key) or self._is_known(key):
            return
        checked = self._check(message)
        if isinstance(checked, str):
            return self.results.returned(*key, checked)
        if isinstance(checked, Failure):
            return self.results.refused(message, checked)
        self.roll.known[key] = checked
        if self._is_prepared(checked):
            self.roll.prepared(checked)
        else:
            self._spawn(self._prepare(checked))

    def _is_known(self, key: tuple[JobId, int]) -> bool:
        """Whether it is here, or was sent here lately: told again after its end, it is over."""
        if key in self.roll.known or key in self._seen or key in self._seen_earlier:
            return True
        if len(self._seen) >= REMEMBERED:
            self._seen, self._seen_earlier = set(), self._seen
        self._seen.add(key)
        return False

    def _check(self, message: JobDispatch) -> HeldAttempt | Failure | str:
        """The attempt; why it can never run from this document; or why it goes back."""
        if self.roll.draining:
            return self.roll.draining
        document = bytes(message.document)
        if document_digest(document) != message.digest:
            return endings.OTHER_DOCUMENT
        try:
            recipe = decode_recipe(document)
        except MALFORMED as error:
            return endings.unreadable_document(error)
        workload = KINDS[recipe.work.type].workload
        if workload not in self.roll.capabilities.workloads:
            return endings.refused(workload)
        if path := closed_path(message.needs, self.roll.capabilities, local=bool(self._own_home)):
            return endings.path_refused(path)
        spec = OWN
        if workload.brings_code:
            spec = self._environments.spec(recipe.python, recipe.requirements)
        attempt = HeldAttempt(message, recipe, spec, next(self._arrivals))
        if attempt.lane not in self._fitting:
            if too_much := self._too_much(attempt):
                return too_much
            self._fitting.add(attempt.lane)
        return attempt

    def _too_much(self, attempt: HeldAttempt) -> str:
        """Why it would not fit even if nothing else ran here; empty where it would."""
        needs, above = attempt.lane
        empty = Capacity(self.roll.capabilities)
        if empty.fits(needs, above_vram_gb=above) is None:
            return "it needs more than this worker has"
        empty.others = self.roll.capacity.others
        if empty.fits(needs, above_vram_gb=above) is None:
            return "processes that are not Corral's use the VRAM that it needs"
        return ""

    def others_hold(self, taken: Iterable[tuple[str, float]]) -> None:
        """What waits for VRAM that others hold goes back: nobody knows when they let go of it."""
        self.roll.capacity.others = dict(taken)
        self._fitting.clear()
        for attempt in self.roll.unbegun():
            if too_much := self._too_much(attempt):
                self.running.give_back(attempt, too_much)
        self.running.start_ready()

    def cancelled(self, message: JobCancel) -> None:
        attempt = self._known(message)
        if attempt is None:
            return
        if attempt.runner is None:
            self.running.fail(attempt, endings.CANCELLED_BEFORE)
        elif attempt is attempt.runner.orders[-1]:
            attempt.runner.write(
                encode_line(Cancel(job=message.job, attempt=message.attempt, cancel=True))
            )
            self.running.end(attempt, endings.CANCELLED, message.grace_s)

    def extended(self, message: JobExtend) -> None:
        attempt = self.roll.known.get((message.job, message.attempt))
        if attempt is not None:
            self.running.extend(attempt, message.duration_s)

    def recalled(self, message: JobRecall) -> None:
        attempt = self._known(message)
        if attempt is not None and attempt.runner is None:
            self.running.give_back(attempt, "recalled")

    def _known(self, message: JobCancel | JobRecall) -> HeldAttempt | None:
        """Out of its runner again, where that has not begun it."""
        attempt = self.roll.known.get((message.job, message.attempt))
        if attempt is not None and attempt.runner is not None:
            self.running.take_back(attempt.runner)
            if attempt.key not in self.roll.known:
                return None
        return attempt

    # --- before it may wait for room -----------------------------------------------------------

    def _is_prepared(self, attempt: HeldAttempt) -> bool:
        recipe = attempt.recipe
        if recipe.inputs or attempt.dispatch.needs.read:
            return False
        if self._environments.ready(attempt.spec) is None:
            return False
        if (code := recipe.work.code) is not None:
            attempt.code = self._assets.kept(code.sha256)
            return bool(attempt.code)
        return True

    async def _prepare(self, attempt: HeldAttempt) -> None:
        """It holds nothing of this worker while it waits for this."""
        failure: Failure | None = None
        try:
            if self._environments.ready(attempt.spec) is None:
                spec = attempt.spec
                self.reports.say(attempt, uv.building(spec.python, spec.requirements))
                await self._environments.get(spec)
            needs = attempt.dispatch.needs
            if needs.read:
                closed = self._own_home if needs.owned else ""
                paths = await asyncio.to_thread(found, needs.read, closed)
                attempt.reads = paths if closed else ()
            for wanted in attempt.recipe.inputs:
                attempt.inputs[wanted.name] = await self._fetched(attempt, wanted)
            if (code := attempt.recipe.work.code) is not None:
                named = Input("the code", code.sha256, code.size)
                attempt.code = await self._fetched(attempt, named)
        except AttemptFailed as error:
            failure = Failure(**error.failure)
        except Abandoned:
            return
        except Exception as error:
            # A mistake of ours, or a disk that fails: it must not stay here for ever.
            log.exception("attempt_not_prepared", job=attempt.key[0], attempt=attempt.key[1])
            failure = Failure(**not_prepared(error))
        if not _is_wanted(attempt):
            return
        if failure is not None:
            return self.running.fail(attempt, failure)
        self.roll.prepared(attempt)
        self.running.start_ready()

    async def _fetched(self, attempt: HeldAttempt, wanted: Input) -> str:
        def say(have: int, size: int) -> None:
            if _is_wanted(attempt):
                percent = f"{have / size:.0%}" if size else ""
                self.reports.say(attempt, f"fetching {wanted.name} {percent}")

        return await self._assets.get(
            wanted, self.orders.ticket(attempt), lambda: _is_wanted(attempt), say
        )

    # --- what is asked of it -------------------------------------------------------------------

    def attempts(self) -> tuple[tuple[JobId, int], ...]:
        """All attempts this worker still answers for."""
        return tuple({**self.roll.known, **self.results.kept})

    def started(self) -> list[Message]:
        return [attempt.started for attempt in self.roll.known.values() if attempt.started]

    def environments_in_use(self) -> set[str]:
        specs = {attempt.spec for attempt in self.roll.known.values()}
        return {spec.digest for spec in specs} | self._runners.environments()

    def assets_in_use(self) -> set[str]:
        known = list(self.roll.known.values())
        inputs = {one.sha256 for attempt in known for one in attempt.recipe.inputs}
        codes = (attempt.recipe.work.code for attempt in known)
        return inputs | {code.sha256 for code in codes if code is not None}

    # --- leaving -------------------------------------------------------------------------------

    def return_waiting(self, reason: str) -> None:
        """From now on everything that has not started goes back."""
        self.roll.draining = reason
        for runner in self.roll.active:
            self.running.take_back(runner)
        for attempt in self.roll.unbegun():
            self.running.give_back(attempt, reason)

    def end_running(self, failure: Failure, grace_s: float) -> None:
        for attempt in list(self.roll.known.values()):
            self.running.end(attempt, failure, grace_s)

    async def close(self) -> None:
        self.running.close()
        self.results.narration.flush()
        await self.results.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("attempt_step_broke", exc_info=error)


def _is_wanted(attempt: HeldAttempt) -> bool:
    """While it is prepared: not cancelled or returned meanwhile."""
    return attempt.phase is Phase.PREPARING
