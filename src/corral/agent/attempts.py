"""The ledger of this worker's attempts: what waits, what runs, what ended and is not yet received.

Everything here happens in callbacks of one event loop: an attempt that ends frees its room and the
next one starts within the same callback. Only endings by force and environments are tasks.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from corral.agent import endings
from corral.agent.assets import Assets
from corral.agent.attempt import Attempt, Lane, decode_recipe
from corral.agent.downloads import Abandoned, AssetFailed, Ticket
from corral.agent.environments import OWN, BuildFailed, Environments
from corral.agent.frames import AnyFrame, Error, Fetching, Metric, Output, Progress, Result, Started
from corral.agent.limits import Limits
from corral.agent.orders import AHEAD_LIMIT, encode_line
from corral.agent.results import Results
from corral.agent.runner_process import Makeup, Runner
from corral.agent.runners import Runners
from corral.agent.waiting import Waiting
from corral.core.frames import told_by
from corral.core.job import Failure, Input, JobId, Workload, record_digest
from corral.core.malformed import MALFORMED
from corral.core.worker import Capabilities, Capacity, Holding
from corral.protocol.messages import (
    JobCancel,
    JobDispatch,
    JobOutput,
    JobProgress,
    JobRecall,
    JobStarted,
    Message,
)
from corral.runtime.order import Cancel, Endpoint, Order, Renderer

log = structlog.get_logger("corral.agent.attempts")

FRAME_COST = 128
"""What a message takes up beside the bytes it carries."""
PLENTY = 16
SEEN = 10_000
"""Attempts that are remembered after their end: so many, and as many again."""
TELL_S = 0.005
"""An attempt that takes longer is told to have begun before it has ended."""


class Ledger:
    def __init__(
        self,
        capabilities: Capabilities,
        *,
        environments: Environments,
        runners: Runners,
        assets: Assets,
        send: Callable[[Message], None],
        send_at_once: Callable[[Message], None],
        send_output: Callable[[JobOutput | JobProgress, int], bool],
        loaded: Callable[[], None] = lambda: None,
        backend_down: Callable[[str, str], None] = lambda kind, said: None,
    ) -> None:
        self.endpoint = Endpoint()
        self.renderer = Renderer("", "", [])
        self.draining = ""
        self._capabilities = capabilities
        self._capacity = Capacity(capabilities)
        self._environments = environments
        self._runners = runners
        self._assets = assets
        self._send = send
        self.results = Results(send_at_once)
        self._send_output = send_output
        self._loaded = loaded
        """Told when a runner is about to have other models loaded."""
        self._backend_down = backend_down
        """Told when a pipeline found no server behind a backend of this kind, and what it said."""
        self._arrivals = itertools.count()
        self._fitting: set[Lane] = set()
        self._waiting = Waiting()
        self._known: dict[tuple[JobId, int], Attempt] = {}
        self._seen: set[tuple[JobId, int]] = set()
        self._seen_earlier: set[tuple[JobId, int]] = set()
        self._running: dict[tuple[JobId, int], Attempt] = {}
        self._active: dict[Runner, None] = {}
        """Runners with attempts, in the order they got their first."""
        self._telling: asyncio.TimerHandle | None = None
        self._paused: set[Runner] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._quiet = asyncio.Event()
        self._limits = Limits(self._known, self._end)

    # --- what the controller says --------------------------------------------------------------

    def dispatched(self, message: JobDispatch) -> None:
        """Remember it; `start_ready` starts it."""
        key = (message.job, message.attempt)
        if key in self._known or self.results.say_again(*key) or self._seen_before(key):
            return
        if self.draining:
            return self.results.returned(*key, self.draining)
        document = bytes(message.document)
        if record_digest(document) != message.digest:
            return self.results.refused(message, endings.OTHER_DOCUMENT)
        try:
            recipe = decode_recipe(document)
        except MALFORMED as error:
            return self.results.refused(message, endings.unreadable_document(error))
        if recipe.workload not in self._capabilities.workloads:
            return self.results.refused(message, endings.refused(recipe.workload))
        spec = OWN
        if recipe.workload.brings_code:
            spec = self._environments.spec(recipe.python, recipe.requirements)
        attempt = Attempt(message, recipe, spec, next(self._arrivals))
        if attempt.lane not in self._fitting:
            refused = self._refuse(attempt)
            if refused:
                return self.results.returned(*key, refused)
            self._fitting.add(attempt.lane)
        self._known[key] = attempt
        if recipe.inputs or self._environments.ready(spec) is None:
            self._spawn(self._prepare(attempt))
        else:
            self._waiting.add(attempt)

    def _seen_before(self, key: tuple[JobId, int]) -> bool:
        """Whether this attempt was sent here lately: told again after its end, it is over."""
        if key in self._seen or key in self._seen_earlier:
            return True
        if len(self._seen) >= SEEN:
            self._seen, self._seen_earlier = set(), self._seen
        self._seen.add(key)
        return False

    def _refuse(self, attempt: Attempt) -> str:
        """Why it would not fit even if nothing else ran here."""
        needs, above = attempt.lane
        empty = Capacity(self._capabilities)
        if empty.fits(needs, above_vram_gb=above) is None:
            return "it needs more than this worker has"
        empty.others = self._capacity.others
        if empty.fits(needs, above_vram_gb=above) is None:
            return "processes that are not Corral's use the VRAM that it needs"
        return ""

    def offer(self, capabilities: Capabilities) -> None:
        """This machine turned out to have more GPUs."""
        self._capabilities = capabilities
        self._capacity.gpus = capabilities.gpus
        for gpu in capabilities.gpus:
            self._capacity.tenths.setdefault(gpu.uuid, 10)

    def others_hold(self, taken: Iterable[tuple[str, float]]) -> None:
        """Processes that are not ours hold this much of the GPUs now. What waits for what they
        hold goes back: nobody knows when they let go."""
        self._capacity.others = dict(taken)
        self._fitting.clear()
        for attempt in list(self._known.values()):
            if attempt.runner is None and (refused := self._refuse(attempt)):
                self._return(attempt, refused)
        self.start_ready()

    def cancelled(self, message: JobCancel) -> None:
        attempt = self._known.get((message.job, message.attempt))
        if attempt is None:
            return
        if attempt.runner is not None:
            self._take_back(attempt.runner)
        if attempt.runner is None:
            self._forget_waiting(attempt)
            self.results.failed(attempt, endings.CANCELLED_BEFORE)
        elif attempt is attempt.runner.orders[-1]:
            attempt.runner.write(encode_line(Cancel(message.job, message.attempt)))
            self._end(attempt, endings.CANCELLED, message.grace_s)

    def recalled(self, message: JobRecall) -> None:
        attempt = self._known.get((message.job, message.attempt))
        if attempt is not None and attempt.runner is not None:
            self._take_back(attempt.runner)
        if attempt is not None and attempt.runner is None:
            self._return(attempt, "recalled")

    # --- what the controller is told -----------------------------------------------------------

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return sum(1 for attempt in self._known.values() if attempt.runner is None)

    @property
    def has_work_ahead(self) -> bool:
        """Whether enough attempts are here that could start without another word."""
        ahead = sum(len(runner.orders) - 1 for runner in self._active)
        return self._waiting.size + ahead >= PLENTY

    def load(self) -> float:
        total = self._capabilities.cpus
        return round((total - self._capacity.cpus) / total, 3) if total else 0.0

    def attempts(self) -> tuple[tuple[JobId, int], ...]:
        """All attempts this worker still answers for."""
        return tuple({**self._known, **self.results.all()})

    def started(self) -> list[Message]:
        return [attempt.started for attempt in self._known.values() if attempt.started]

    def environments_in_use(self) -> set[str]:
        specs = {attempt.spec for attempt in self._known.values()}
        return {spec.digest for spec in specs} | self._runners.environments()

    def assets_in_use(self) -> set[str]:
        known = list(self._known.values())
        return {one.sha256 for attempt in known for one in attempt.recipe.inputs}

    # --- starting ------------------------------------------------------------------------------

    async def _prepare(self, attempt: Attempt) -> None:
        try:
            if self._environments.ready(attempt.spec) is None:
                await self._build(attempt)
            for wanted in attempt.recipe.inputs:
                await self._fetch(attempt, wanted)
        except (BuildFailed, AssetFailed) as error:
            if attempt.key in self._known:
                del self._known[attempt.key]
                self.results.failed(attempt, error.failure)
            return
        except Abandoned:
            return
        except Exception as error:
            # A mistake of ours, or a disk that fails: it must not stay here for ever.
            log.exception("attempt_not_prepared", job=attempt.key[0], attempt=attempt.key[1])
            if attempt.key in self._known:
                del self._known[attempt.key]
                said = f"The worker could not prepare it: {type(error).__name__}: {error}"
                self.results.failed(attempt, Failure("transfer_failed", said))
            return
        if attempt.key in self._known:
            self._waiting.add(attempt)
            self.start_ready()

    async def _fetch(self, attempt: Attempt, wanted: Input) -> None:
        """One input file, before the attempt has a place: it holds nothing while it waits."""

        def say(have: int, size: int) -> None:
            if attempt.key in self._known:
                percent = f"{have / size:.0%}" if size else ""
                self._say(attempt, f"fetching {wanted.name} {percent}")

        way = self.endpoint
        ticket = Ticket(way.url, way.certificate, *attempt.key, attempt.dispatch.token)
        attempt.inputs[wanted.name] = await self._assets.get(
            wanted, ticket, lambda: attempt.key in self._known, say
        )

    async def _build(self, attempt: Attempt) -> None:
        count = len(attempt.spec.requirements)
        what = (
            f"{count} requirement{'s' * (count != 1)}" if count else f"Python {attempt.spec.python}"
        )
        self._say(attempt, f"building environment ({what})")
        await self._environments.get(attempt.spec)

    def _say(self, attempt: Attempt, message: str) -> None:
        attempt.told += 1
        told = JobProgress(*attempt.key, message=message, n=attempt.told)
        self._send_output(told, len(message) + FRAME_COST)

    def start_ready(self) -> None:
        while self._waiting.size:
            now = time.monotonic()
            found = self._waiting.next(self._capacity)
            if found is None:
                for runner in self._active:
                    self._send_ahead(runner)
                return
            self._start(*found, now)

    def _start(self, attempt: Attempt, holding: Holding, now: float) -> None:
        environment = self._environments.ready(attempt.spec)
        if environment is None:
            # Cleaned away or broken since it was prepared.
            self._spawn(self._prepare(attempt))
            return
        dispatch, recipe = attempt.dispatch, attempt.recipe
        env = recipe.env if recipe.workload.brings_code else {}
        makeup = Makeup(
            environment.digest,
            tuple(sorted(env.items())) if env else (),
            holding.devices,
            dispatch.needs.memory_gb,
            self._runners.processors_for(dispatch.needs.cpus),
            self._runners.digest(dispatch.secrets) if dispatch.secrets else "",
            recipe.owner,
        )
        try:
            runner = self._runners.take(
                makeup, environment, self, fresh=attempt.fresh, secrets=dispatch.secrets
            )
        except OSError as error:
            del self._known[attempt.key]
            return self.results.failed(attempt, endings.no_runner(error))
        self._capacity.take(holding)
        self._active[runner] = None
        attempt.runner = runner
        if dispatch.needs.models and dispatch.needs.models != runner.models:
            runner.models = dispatch.needs.models
            self._loaded()
        runner.order(attempt, self._order(attempt, runner))
        self._runs(attempt, holding, now)
        self._limits.watch()

    def _runs(self, attempt: Attempt, holding: Holding, now: float) -> None:
        """It is the one that runs in its runner. A warm runner says nothing of that, because most
        such attempts end before anybody could care; for the others `_tell_starts` looks."""
        runner = attempt.runner
        assert runner is not None
        attempt.holding = holding
        attempt.since = now
        attempt.deadline = now + attempt.dispatch.duration_s
        attempt.assumed = runner.typical_s > 0
        self._running[attempt.key] = attempt
        if attempt.assumed:
            self._look_soon()

    def _tell_starts(self) -> None:
        """Attempts that are not over in a moment: the controller hears that they run, and nobody
        waits behind them."""
        self._telling = None
        now = time.monotonic()
        again = False
        for runner in list(self._active):
            attempt = runner.attempt
            if attempt is None:
                continue
            if now - attempt.since < TELL_S:
                again |= attempt.assumed or len(runner.orders) > 1
                continue
            if attempt.assumed and attempt.ending is None:
                self._began(attempt, runner)
            self._take_back(runner)
        if self._waiting.size:
            self.start_ready()
        if again:
            self._look_soon()

    def _look_soon(self) -> None:
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(TELL_S, self._tell_starts)

    def _send_ahead(self, runner: Runner) -> None:
        """Short attempts wait in the runner itself: between two it then waits for nobody. Not
        behind one that has turned out to be long."""
        last = runner.orders[-1] if runner.orders and runner.code is None else None
        if last is None or time.monotonic() - runner.orders[0].since >= TELL_S:
            return
        while last.ending is None and not last.fresh and self._waiting.size:
            if not runner.takes_ahead() or len(last.dispatch.document) > AHEAD_LIMIT:
                return
            attempt = self._waiting.next_like(last, AHEAD_LIMIT)
            if attempt is None:
                return
            attempt.runner = runner
            runner.used += 1
            runner.order(attempt, self._order(attempt, runner))
            self._look_soon()
            last = attempt

    def _take_back(self, runner: Runner, *, everything: bool = False) -> None:
        """What a runner has not begun waits for any other again."""
        first = runner.attempt
        back = runner.take_back(everything=everything)
        if back and back[0] is first:
            self._pass_on(first, runner)  # it took a later one first, or is gone
        for attempt in back:
            attempt.runner = None
            runner.used -= 1
            if self.draining:
                self._return(attempt, self.draining)
            else:
                self._waiting.add(attempt)

    def _pass_on(self, attempt: Attempt, runner: Runner) -> None:
        """What an attempt held is now held by the one that runs in its place, if there is one."""
        holding, attempt.holding = attempt.holding, None
        if holding is None:
            return
        attempt.assumed, attempt.begun, attempt.started = False, False, None
        attempt.since, attempt.deadline = 0.0, math.inf
        del self._running[attempt.key]
        if runner.orders:
            self._runs(runner.orders[0], holding, time.monotonic())
        else:
            self._capacity.give(holding)

    def _give_up_unheard(self, runner: Runner) -> None:
        """The runner is gone: all but the last of its attempts ended, and their last words are
        lost."""
        while len(runner.orders) > 1:
            attempt = runner.orders.popleft()
            self._runs_surely(attempt, runner)
            del self._known[attempt.key]
            self.results.failed(attempt, endings.of_death(runner, attempt))
            self._pass_on(attempt, runner)

    def _order(self, attempt: Attempt, runner: Runner) -> bytes:
        dispatch = attempt.dispatch
        return encode_line(
            Order(
                dispatch.job,
                dispatch.attempt,
                dispatch.document,
                self.endpoint,
                dispatch.token,
                runner.directory.path,
                dispatch.checkpoint,
                dispatch.correlation_id,
                attempt.inputs,
                self.renderer if attempt.recipe.workload is Workload.PIPELINE else None,
            )
        )

    # --- what runners say ----------------------------------------------------------------------

    def heard(self, runner: Runner, frames: list[AnyFrame]) -> None:
        for frame in frames:
            attempt = runner.attempt
            if attempt is None:
                continue
            if isinstance(frame, Result):
                if attempt.ending is None:
                    self._runs_surely(attempt, runner)
                    self.results.completed(attempt, frame.result)
                    self._leave(attempt, runner, retire=frame.retire)
                else:
                    runner.settled = True
            elif isinstance(frame, Started):
                if attempt.begun:
                    continue  # said by the job itself, which would have its duration again
                attempt.begun = True
                attempt.since = time.monotonic()
                attempt.deadline = attempt.since + attempt.dispatch.duration_s
                self._began(attempt, runner)
            elif isinstance(frame, Fetching):
                attempt.assumed = False
            elif isinstance(frame, Output):
                self._runs_surely(attempt, runner)
                self._output(attempt, runner, frame)
            elif isinstance(frame, Error):
                if attempt.ending is None:
                    self._runs_surely(attempt, runner)
                    failure = endings.of_error(frame.failure, attempt)
                    if failure.code == "backend_down":
                        self._backend_down(failure.type, failure.message)
                    self.results.failed(attempt, failure)
                    self._leave(attempt, runner, retire=frame.retire)
                else:
                    runner.settled = True
            elif isinstance(frame, Progress):
                self._runs_surely(attempt, runner)
                attempt.told += 1
                told = JobProgress(*attempt.key, frame.fraction, frame.message, n=attempt.told)
                self._forward(runner, told, len(frame.message))
            elif isinstance(frame, Metric):
                self._runs_surely(attempt, runner)
                attempt.told += 1
                told = JobProgress(
                    *attempt.key, metrics=frame.values, step=frame.step, n=attempt.told
                )
                self._forward(runner, told, 64 * len(frame.values))

    def gone(self, runner: Runner) -> None:
        if runner.attempt is None:
            return self._runners.lost(runner)
        # A warm one that died between two attempts takes none along; a new one that did not come
        # to its first must not be tried for ever.
        self._take_back(runner, everything=runner.typical_s > 0)
        self._give_up_unheard(runner)
        attempt = runner.attempt
        if attempt is None:
            del self._active[runner]
            self._paused.discard(runner)
            self._spawn(self._bury_idle(runner))
            return self.start_ready()
        if attempt.assumed:
            self._began(attempt, runner)
        if attempt.started is None:
            self._environments.forget(attempt.spec)  # gone or broken on disk, perhaps
        if attempt.ending is None:
            attempt.ending = endings.of_death(runner, attempt)
            self._spawn(self._bury(attempt, runner, 0.0))

    def _runs_surely(self, attempt: Attempt, runner: Runner) -> None:
        """Something was heard of it: that it began is told before."""
        if attempt.assumed:
            self._began(attempt, runner)

    def _began(self, attempt: Attempt, runner: Runner) -> None:
        attempt.assumed = False
        attempt.started = JobStarted(
            *attempt.key,
            time.time() - time.monotonic() + attempt.since,
            runner.makeup.devices,
            runner.used > 1,
        )
        self._send(attempt.started)
        self.results.narration.started(attempt.dispatch)

    def _output(self, attempt: Attempt, runner: Runner, frame: Output) -> None:
        attempt.told += told_by(frame.text, frame.data)
        message = JobOutput(*attempt.key, frame.stream, frame.text, frame.data, attempt.told)
        self._forward(runner, message, len(frame.text) + len(frame.data))

    def _forward(self, runner: Runner, message: JobOutput | JobProgress, size: int) -> None:
        """On to the controller; a job that talks faster than that way is wide has to wait."""
        if self._send_output(message, size + FRAME_COST):
            runner.pause()
            self._paused.add(runner)

    def resume_output(self) -> None:
        for runner in self._paused:
            runner.resume()
        self._paused.clear()

    # --- ending --------------------------------------------------------------------------------

    def _leave(self, attempt: Attempt, runner: Runner, *, retire: bool) -> None:
        """The attempt is over: make its runner fit for the next one, or end it. What it held is
        free only then."""
        runner.orders.popleft()
        del self._known[attempt.key]
        now = time.monotonic()
        seconds = max(now - attempt.since, 1e-5)
        runner.typical_s += (0.5 if seconds > runner.typical_s else 0.1) * (
            seconds - runner.typical_s
        )
        if retire or attempt.fresh:
            self._take_back(runner, everything=True)
            del self._active[runner]
            self._spawn(self._retire(attempt, runner))
            return
        if runner.orders:
            assert attempt.holding is not None
            del self._running[attempt.key]
            self._runs(runner.orders[0], attempt.holding, now)
            self._send_ahead(runner)
            return
        del self._active[runner]
        if runner.directory.empty():
            self._runners.give_back(runner)
            self._release(attempt)
        else:
            self._spawn(self._retire(attempt, runner))

    async def _retire(self, attempt: Attempt, runner: Runner) -> None:
        self._paused.discard(runner)
        with self._releasing(attempt):
            await self._runners.end(runner, grace_s=0.0)

    async def _bury_idle(self, runner: Runner) -> None:
        await self._runners.end(runner, grace_s=0.0)

    def _end(self, attempt: Attempt, failure: Failure, grace_s: float) -> None:
        runner = attempt.runner
        if runner is None or attempt.ending is not None:
            return
        self._take_back(runner)
        if attempt.runner is not None and attempt is runner.orders[-1]:
            attempt.ending = failure
            self._spawn(self._bury(attempt, runner, grace_s))

    async def _bury(self, attempt: Attempt, runner: Runner, grace_s: float) -> None:
        """The failure is told when the whole process tree is proved gone, not before."""
        with self._releasing(attempt):
            ended = await self._runners.end(runner, grace_s=grace_s)
            self._paused.discard(runner)
            self._give_up_unheard(runner)
            runner.orders.clear()
            self._active.pop(runner, None)
            assert attempt.ending is not None
            del self._known[attempt.key]
            failure = attempt.ending if ended else endings.survived(attempt.ending)
            self.results.failed(attempt, failure)

    @contextmanager
    def _releasing(self, attempt: Attempt) -> Iterator[None]:
        """Whatever a job left behind to break the cleaning up, its place becomes free again."""
        try:
            yield
        except Exception as error:
            log.error("clean_up_broke", job=attempt.key[0], attempt=attempt.key[1], exc_info=error)
        self._release(attempt)

    def _release(self, attempt: Attempt) -> None:
        assert attempt.holding is not None
        self._capacity.give(attempt.holding)
        del self._running[attempt.key]
        if self._waiting.size:
            self.start_ready()
        elif not self._running:
            self._quiet.set()

    def _forget_waiting(self, attempt: Attempt) -> None:
        self._waiting.drop(attempt)
        del self._known[attempt.key]

    def _return(self, attempt: Attempt, reason: str) -> None:
        self._forget_waiting(attempt)
        self.results.returned(*attempt.key, reason)

    # --- leaving -------------------------------------------------------------------------------

    def return_waiting(self, reason: str) -> None:
        """From now on everything that has not started goes back."""
        self.draining = reason
        for runner in self._active:
            self._take_back(runner)
        for attempt in list(self._known.values()):
            if attempt.runner is None:
                self._return(attempt, reason)

    def end_running(self, failure: Failure, grace_s: float) -> None:
        for attempt in list(self._known.values()):
            self._end(attempt, failure, grace_s)

    async def until_quiet(self) -> None:
        """Until nothing runs."""
        while self._running:
            self._quiet.clear()
            await self._quiet.wait()

    async def close(self) -> None:
        self._limits.close()
        if self._telling is not None:
            self._telling.cancel()
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
