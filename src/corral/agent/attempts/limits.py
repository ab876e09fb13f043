"""The limits that the agent holds itself: one sweep over what runs, not one timer each."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping

from corral.agent.attempts import endings
from corral.agent.attempts.attempt import HeldAttempt
from corral.agent.inventory import GIB
from corral.core.job import Failure, JobId
from corral.runtime.channels import remarks
from corral.runtime.endings import over_duration
from corral.runtime.process.memory_kills import MemoryKills

SWEEP_S = 0.1
WEIGH_S = 0.5
KILL_GRACE_S = 5.0
"""Between terminating and killing what ran over its duration."""


class Limits:
    """Ends attempts over their duration or memory. Asleep while nothing runs."""

    def __init__(
        self,
        attempts: Mapping[tuple[JobId, int], HeldAttempt],
        end: Callable[[HeldAttempt, Failure, float], None],
        say: Callable[[HeldAttempt, str], None],
    ) -> None:
        self._attempts = attempts
        self._end, self._say = end, say
        self.kills = MemoryKills()
        self._timer: asyncio.TimerHandle | None = None
        self._weighed_at = 0.0
        self._weighing: asyncio.Task[None] | None = None

    def watch(self) -> None:
        if self._timer is None:
            self.kills.look()
            self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._weighing is not None:
            self._weighing.cancel()

    def _sweep(self) -> None:
        self._timer = None
        now = time.monotonic()
        self.kills.look()
        running = [
            attempt
            for attempt in self._attempts.values()
            if attempt.runner is not None and attempt.ending is None
        ]
        for attempt in running:
            if now > attempt.deadline:
                failure = Failure(**over_duration(attempt.dispatch.duration_s))
                self._end(attempt, failure, KILL_GRACE_S)
            elif attempt.warned_at < remarks.WARN_AT:
                self._remark(attempt, now)
        if now - self._weighed_at >= WEIGH_S and self._weighing is None:
            limited = [attempt for attempt in running if attempt.dispatch.needs.memory_gb > 0]
            if limited:
                self._weighed_at = now
                self._weighing = asyncio.create_task(self._weigh(limited))
        if running:
            self.watch()

    def extended(self, attempt: HeldAttempt, former_s: float) -> None:
        """Of one that runs: it is warned again, of its new end."""
        if attempt.deadline == math.inf or attempt.ending is not None:
            return
        duration_s = attempt.dispatch.duration_s
        attempt.deadline += duration_s - former_s
        attempt.warned_at = 0.0
        self._say(attempt, remarks.extended(duration_s, attempt.deadline - time.monotonic()))

    def _remark(self, attempt: HeldAttempt, now: float) -> None:
        duration_s, left_s = attempt.dispatch.duration_s, attempt.deadline - now
        if at := remarks.due(duration_s, duration_s - left_s, attempt.warned_at):
            attempt.warned_at = at
            self._say(attempt, remarks.of_its_end(attempt.dispatch.job, duration_s, left_s, at))

    async def _weigh(self, attempts: list[HeldAttempt]) -> None:
        try:
            for attempt in attempts:
                runner = attempt.runner
                if runner is None or runner.tree is None:
                    continue
                limit = int(attempt.dispatch.needs.memory_gb * GIB)
                held = await asyncio.to_thread(runner.tree.memory_bytes, limit)
                if runner.attempt is attempt:
                    attempt.memory_seen = held
                    if held > limit:
                        self._end(attempt, endings.over_memory(attempt), 0.0)
        finally:
            self._weighing = None
