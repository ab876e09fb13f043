"""How long workers that are away are waited for, in time that this process lived through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

import structlog

log = structlog.get_logger()

STEP_S = 1.0
ASLEEP_S = 1.0
"""A look that comes so much too late: it was us who stood still."""


class Graces:
    """A controller that was stopped for a while, or whose machine was, heard nobody meanwhile and
    blames nobody for it: whoever it waited for has the whole time again. So it looks once in a
    while instead of setting one timer."""

    def __init__(self, grace_s: float, over: Callable[[str], None]) -> None:
        self._grace_s, self._over = grace_s, over
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def __contains__(self, worker: str) -> bool:
        return worker in self._timers

    def begin(self, worker: str, silent_s: float = 0.0) -> None:
        self._wait(worker, max(0.0, self._grace_s - silent_s))

    def end(self, worker: str) -> None:
        timer = self._timers.pop(worker, None)
        if timer is not None:
            timer.cancel()

    def _wait(self, worker: str, left_s: float) -> None:
        step_s = min(left_s, STEP_S)
        then = (worker, left_s - step_s, monotonic() + step_s)
        timer = asyncio.get_running_loop().call_later(step_s, self._look, *then)
        self._timers[worker] = timer

    def _look(self, worker: str, left_s: float, due: float) -> None:
        late_s = monotonic() - due
        if late_s > ASLEEP_S:
            log.warning("controller_stood_still", worker=worker, seconds=round(late_s, 1))
            left_s = self._grace_s
        if left_s > 0:
            self._wait(worker, left_s)
        else:
            del self._timers[worker]
            self._over(worker)
