"""Asks attempts back that were sent ahead: when another worker falls idle first, or when the one
that has them begins to fail.

A look now and then after something was committed, never one for each commit: what it costs does
not depend on how much work flows by.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import structlog

from corral.controller.loop import Loop
from corral.controller.store import Store
from corral.controller.world import FRONT
from corral.core.job import JobId, State
from corral.scheduler.fit import Room
from corral.scheduler.recall import Sent, behind, recalled
from corral.scheduler.snapshot import Seat

log = structlog.get_logger()

EVERY_S = 0.05
SHARE = 20
"""A look that takes long is followed by a pause of so many times as much."""

Key = tuple[JobId, int]


class Recalling:
    def __init__(self, store: Store, loop: Loop) -> None:
        self._store, self._loop = store, loop
        self._stirred = asyncio.Event()
        self._seen: set[Key] = set()
        """Those that could have begun elsewhere when we last looked."""
        self._asked: set[Key] = set()
        store.listen(lambda changes: self._stirred.set())

    async def run(self) -> None:
        pause_s = EVERY_S
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            await asyncio.sleep(pause_s)
            began = time.perf_counter()
            await self.look()
            pause_s = max(EVERY_S, SHARE * (time.perf_counter() - began))
            if self._seen:
                self._stirred.set()

    async def look(self) -> int:
        """Asks back whoever could have begun elsewhere now and at the last look: what begins
        within a moment stays where it is. Answers with how many that were."""
        world, now = self._store.world, time.time()
        workers = self._loop.workers()
        if not world.held or not (len(workers) > 1 or world.circuits) or self._loop.why_paused():
            self._seen.clear()
            return 0
        if self._asked:
            held = world.held.values()
            self._asked &= {(one.id, one.attempt) for there in held for one in there.values()}
        sent, failing, idle = self._sent(world.seats(workers), now)
        able: Sequence[Sent] = ()
        if sent and idle:
            able = recalled(self._loop.snapshot(now), sent, self._loop.scheduler)
        keys = {(one.job, one.attempt) for one in able}
        asked = keys & self._seen
        self._seen = keys - asked
        for one in failing:
            await self._ask(one)
        for attempts in sent.values():
            for one in attempts:
                if (one.job, one.attempt) in asked:
                    await self._ask(one)
        count = len(asked) + len(failing)
        if count:
            log.info("attempts_recalled", count=count, from_failing_workers=count - len(asked))
        return count

    def _sent(
        self, seats: Sequence[Seat], now: float
    ) -> tuple[dict[str, Sequence[Sent]], list[Sent], bool]:
        """Who waits behind others, who waits on a failing worker, and whether anybody is idle."""
        sent: dict[str, Sequence[Sent]] = {}
        failing: list[Sent] = []
        idle, count = False, 0
        for seat in seats:
            worker = seat.worker
            if not worker.connected:
                continue
            unbegun = self._unbegun(worker.id)
            if seat.circuit.is_open(now):
                failing += unbegun
                continue
            room = Room(worker, seat.held)
            if room.ahead and count < FRONT:
                sent[worker.id] = behind(room, unbegun)
                count += len(sent[worker.id])
            elif not room.ahead and room.capacity.cpus > 0:
                idle = True
        return sent, failing, idle

    def _unbegun(self, worker: str) -> list[Sent]:
        """Those that were not asked for before, in the order in which they were sent."""
        return [
            Sent(head.id, head.attempt, head.shape, head.place, head.submitted_at)
            for head in self._store.world.held.get(worker, {}).values()
            if head.state is State.PLACED and (head.id, head.attempt) not in self._asked
        ]

    async def _ask(self, one: Sent) -> None:
        self._asked.add((one.job, one.attempt))
        head = self._store.world.heads.get(one.job)
        if head is not None and head.attempt == one.attempt:
            await self._loop.fleet.stop(head, grace_s=0.0, unbegun=True)
