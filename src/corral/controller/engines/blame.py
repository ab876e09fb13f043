"""Whose fault it was: what reports say of workers goes to their circuits."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from corral.controller.store import Store
from corral.core.job import Failure
from corral.scheduler.circuit import CLOSED, Breaker, after

log = structlog.get_logger()


class Blame:
    def __init__(self, store: Store, breaker: Breaker, wake: Callable[[], None]) -> None:
        self._store, self._breaker, self._wake = store, breaker, wake
        self._away = set(store.world.held)
        """Held attempts when we began, not met since: what they lost may have gone down with us."""
        self.judged: list[tuple[str, Failure | None, str]] = []
        """What this batch says of workers: who, how it ended, and what."""

    def met(self, worker: str) -> None:
        self._away.discard(worker)

    def lost(self, worker: str, reason: str) -> None:
        """A worker that is lost fails once, however many attempts it takes along; and not for what
        may have gone down with us."""
        if worker in self._away:
            return
        lost = Failure(code="worker_lost", message=reason)
        self.judged.append((worker, lost, f"lost at {time.time()}"))

    def conclude(self) -> None:
        judged, self.judged = self.judged, []
        world, now = self._store.world, time.time()
        for worker, failure, what in judged:
            before = world.circuits.pop(worker, CLOSED)
            circuit = after(before, failure, what, at=now, breaker=self._breaker)
            if circuit is not CLOSED:
                world.circuits[worker] = circuit
            if circuit.opened > before.opened:
                log.warning(
                    "circuit_opened",
                    worker=world.names.get(worker, worker),
                    failures=len(circuit.failed),
                    probe_in_s=round(circuit.until - now, 1),
                    error=failure.message[:500] if failure else "",
                )
        if world.circuits:
            self._wake()
