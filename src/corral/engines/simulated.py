"""A cluster in memory: the same port as the real engines, with levers for planning and tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence

from msgspec.structs import replace

from corral.core.events import (
    AttemptBegan,
    AttemptExited,
    AttemptReturned,
    EngineReport,
    WorkerJoined,
    WorkerLost,
)
from corral.core.job import Blob, Failure, JobId
from corral.core.worker import Capacity, Holding, Worker
from corral.engines.engine import Attempt


class SimulatedEngine:
    """Attempts take `seconds(attempt)` and succeed, unless a lever is pulled until then."""

    name = "simulated"

    def __init__(
        self, workers: Sequence[Worker], seconds: Callable[[Attempt], float] = lambda _: 0.0
    ) -> None:
        self._workers = {worker.id: replace(worker, engine=self.name) for worker in workers}
        self._capacity = {worker.id: Capacity(worker.capabilities) for worker in workers}
        self._seconds = seconds
        self._waiting: list[Attempt] = []
        self._running: dict[tuple[JobId, int], tuple[Attempt, Holding, asyncio.TimerHandle]] = {}
        self._ended: set[tuple[JobId, int]] = set()
        self._unheard: set[tuple[JobId, int]] = set()
        """Ended, and that is not on disk yet: still ours to answer for."""
        self._inbox: list[EngineReport] = []
        self._arrived = asyncio.Event()
        self.most_running = 0
        self.trouble = ""
        self.changed: Callable[[], None] = lambda: None
        self.answer: Callable[[Attempt], bytes] = lambda _: b""
        """What an attempt that succeeds returns."""

    def open(self, holding: Collection[str] = ()) -> None:
        for worker in self._workers.values():
            self._report(WorkerJoined(worker.id, worker.name, worker.capabilities))

    async def drain(self, grace_s: float) -> None:
        pass

    async def close(self) -> None:
        pass

    # --- the five verbs ---

    def workers(self) -> Sequence[Worker]:
        return list(self._workers.values())

    def start(self, attempt: Attempt) -> None:
        key = (attempt.job, attempt.number)
        if key in self._running or key in self._ended or attempt in self._waiting:
            return
        if self._workers[attempt.worker].connected:
            self._waiting.append(attempt)
            self._begin()

    async def stop(
        self, job: JobId, attempt: int, *, grace_s: float, unbegun: bool = False
    ) -> None:
        for waiting in self._waiting:
            if (waiting.job, waiting.number) == (job, attempt):
                self._waiting.remove(waiting)
                if unbegun:
                    self._report(AttemptReturned(job, attempt, waiting.worker, "recalled"))
                else:
                    self._exit(waiting, Failure(code="cancelled", message="Cancelled."), 0.0)
                return
        if unbegun:
            return
        self.fail(job, attempt, Failure(code="cancelled", message="Cancelled."))

    async def running(self) -> Collection[tuple[JobId, int]]:
        waiting = ((one.job, one.number) for one in self._waiting)
        return [*self._running, *waiting, *self._unheard]

    async def events(self) -> AsyncIterator[Sequence[EngineReport]]:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            batch, self._inbox = self._inbox, []
            if batch:
                yield batch
                ended = (report for report in batch if isinstance(report, AttemptExited))
                self._unheard.difference_update((one.job, one.attempt) for one in ended)

    # --- levers ---

    def fail(self, job: JobId, attempt: int, failure: Failure) -> None:
        found = self._running.pop((job, attempt), None)
        if found is not None:
            one, holding, timer = found
            timer.cancel()
            self._capacity[one.worker].give(holding)
            self._exit(one, failure, 0.0)
            self._begin()

    def lose(self, worker: str, reason: str = "power cut") -> None:
        """The worker is gone with all it had."""
        self._workers[worker] = replace(self._workers[worker], connected=False)
        for key, (one, _, timer) in list(self._running.items()):
            if one.worker == worker:
                timer.cancel()
                del self._running[key]
        self._waiting = [one for one in self._waiting if one.worker != worker]
        self._capacity[worker] = Capacity(self._workers[worker].capabilities)
        self._report(WorkerLost(worker, reason))

    def restore(self, worker: str) -> None:
        """The worker is back, empty."""
        self._workers[worker] = replace(self._workers[worker], connected=True)
        back = self._workers[worker]
        self._report(WorkerJoined(back.id, back.name, back.capabilities))

    # --- inside ---

    def _begin(self) -> None:
        left = []
        for one in self._waiting:
            holding = self._capacity[one.worker].fits(one.needs, above_vram_gb=one.above_vram_gb)
            if holding is None:
                left.append(one)
                continue
            self._capacity[one.worker].take(holding)
            seconds = self._seconds(one)
            loop = asyncio.get_running_loop()
            timer = loop.call_later(seconds, self._succeed, one, seconds)
            self._running[one.job, one.number] = (one, holding, timer)
            self._report(
                AttemptBegan(one.job, one.number, one.worker, time.time(), holding.devices)
            )
        self._waiting = left
        self.most_running = max(self.most_running, len(self._running))

    def _succeed(self, one: Attempt, seconds: float) -> None:
        _, holding, _ = self._running.pop((one.job, one.number))
        self._capacity[one.worker].give(holding)
        self._exit(one, None, seconds)
        self._begin()

    def _exit(self, one: Attempt, failure: Failure | None, seconds: float) -> None:
        self._ended.add((one.job, one.number))
        self._unheard.add((one.job, one.number))
        result = None if failure else Blob.of(self.answer(one))
        self._report(
            AttemptExited(
                one.job, one.number, one.worker, time.time(), seconds, one.digest, result, failure
            )
        )

    def _report(self, report: EngineReport) -> None:
        self._inbox.append(report)
        self._arrived.set()
