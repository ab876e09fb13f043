"""The loop: look at the world, decide, write the plan down, start what was written."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence

import structlog

from corral.controller.store import Change, Store
from corral.controller.tokens import AttemptTokens
from corral.core.errors import JournalDamaged, StorageFailed
from corral.core.events import AttemptPlaced, JobFailed
from corral.core.job import Failure, Head, State
from corral.core.worker import Worker
from corral.engines.engine import Attempt, Engine
from corral.scheduler.plan import Plan, decide

log = structlog.get_logger()

DISK_PAUSE_S = 1.0


class Loop:
    def __init__(
        self,
        store: Store,
        engines: Mapping[str, Engine],
        tokens: AttemptTokens,
        *,
        aging_s: float,
    ) -> None:
        self._store, self._engines, self._tokens = store, engines, tokens
        self._aging_s = aging_s
        self._wake = asyncio.Event()
        self.paused = False
        self.placing = asyncio.Lock()
        """Held from a placement's commit until its engine has it: who looks at what a worker has
        meanwhile would miss it."""
        store.listen(self._committed)

    def wake(self) -> None:
        self._wake.set()

    def _committed(self, changes: Sequence[Change]) -> None:
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            try:
                timeout = await self.turn()
            except StorageFailed:
                timeout = DISK_PAUSE_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._wake.wait()

    async def workers(self) -> list[Worker]:
        return [worker for engine in self._engines.values() for worker in await engine.workers()]

    async def turn(self) -> float | None:
        """One decision and its consequences; returns when to look again if nothing happens."""
        world, now = self._store.world, time.time()
        due = world.wake_due(now)
        if self.paused:
            return None
        workers = await self.workers()
        plan = decide(world.snapshot(now, workers, self._aging_s))
        if plan.placements:
            await self._carry_out(plan, {worker.id: worker for worker in workers}, now)
            self._wake.set()
        return self._next_look(now, due)

    def _next_look(self, now: float, due: float | None) -> float | None:
        times = [due] if due is not None else []
        oldest = self._store.world.oldest_wait()
        if oldest is not None:
            turn = self._store.world.last_aged_at + self._aging_s
            times.append(max(oldest + self._aging_s, turn, now + 1.0))
        return max(0.0, min(times) - now) if times else None

    async def _carry_out(self, plan: Plan, workers: Mapping[str, Worker], now: float) -> None:
        facts = [
            AttemptPlaced(
                job=placement.job,
                at=now,
                attempt=placement.attempt,
                worker=placement.worker,
                why=placement.why,
                ahead=placement.ahead,
            )
            for placement in plan.placements
        ]
        async with self.placing:
            changes = await self._store.append(facts, skip_conflicts=True)
            if plan.turn:
                self._store.world.last_aged_at = now
            for change in changes:
                await self._start(change.head, workers[change.head.worker])

    async def _start(self, placed: Head, worker: Worker) -> None:
        head = self._store.world.heads.get(placed.id)
        if head is None or head.state is not State.PLACED or head.attempt != placed.attempt:
            return  # cancelled while its placement was written
        try:
            document = self._store.document(head)
        except JournalDamaged as error:
            await self._give_up(head, str(error))
            return
        log.debug("attempt_placed", job=head.id, attempt=head.attempt, worker=worker.name)
        await self._engines[worker.engine].start(
            Attempt(
                job=head.id,
                number=head.attempt,
                worker=worker.id,
                document=document,
                digest=head.digest,
                token=self._tokens.issue(head.id, head.attempt),
                needs=head.shape.needs,
                above_vram_gb=head.shape.above_vram_gb,
                duration_s=head.duration_s,
                queue_class=head.shape.queue_class,
                priority=head.shape.priority,
                checkpoint=head.checkpoint,
            )
        )

    async def _give_up(self, head: Head, message: str) -> None:
        failure = Failure(code="damaged", message=message)
        fact = JobFailed(job=head.id, at=time.time(), attempt=head.attempt, failure=failure)
        await self._store.append([fact], skip_conflicts=True)
        log.error("document_damaged", job=head.id, error=message)
