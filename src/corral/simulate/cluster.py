"""Machines in virtual time: they load models, run what they were sent, fail and come back.

Nothing here decides where a job goes; a `Sender` does, and is told what happens.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Protocol

from corral.simulate.description import DescribedModel, Description, Machine
from corral.simulate.trace import TracedJob


class Sender(Protocol):
    """Whoever decides. Orders are asked for after everything that happens."""

    classes: bool
    """Whether its workers know the queue classes."""

    def arrived(self, work: TracedJob, now: float) -> None: ...
    def began(self, work: TracedJob, worker: str, now: float) -> None: ...
    def ended(
        self, work: TracedJob, worker: str, now: float, seconds: float, *, fails: bool
    ) -> bool:
        """Whether it is tried again."""

    def lost(self, worker: str, held: Sequence[TracedJob], now: float) -> int:
        """How many of what it held are given up for good."""

    def orders(
        self, now: float, machines: Sequence[SimulatedAttempt]
    ) -> Sequence[tuple[TracedJob, str]]: ...
    def next_look(self, now: float) -> float | None: ...


class SimulatedAttempt:
    """One machine while the simulation runs."""

    def __init__(
        self, described: Machine, models: dict[str, DescribedModel], *, classes: bool
    ) -> None:
        self.name, self.speed, self.vram_gb = described.name, described.speed, described.vram_gb
        self._models = models
        self.present = tuple(models) if described.models is None else described.models
        self.up = True
        self.loaded: list[str] = []
        """The one used longest ago first."""
        self.current: TracedJob | None = None
        self.run = 0
        """Counts what it began, so that an end that was overtaken by an outage is ignored."""
        self.began = 0.0
        self.waiting: list[tuple[bool, int, TracedJob]] = []
        """Sent ahead."""
        self._classes = classes
        """Interactive first, as an agent does; else in the order they were sent."""
        self.sent = 0
        self.busy_s = self.loading_s = 0.0
        self.loads = 0

    def takes(self, work: TracedJob) -> None:
        self.sent += 1
        heapq.heappush(self.waiting, (self._classes and not work.urgent, self.sent, work))

    @property
    def held(self) -> list[TracedJob]:
        mine = [work for *_, work in sorted(self.waiting)]
        return [self.current, *mine] if self.current is not None else mine

    def load(self, work: TracedJob) -> float:
        """Makes its model ready and says how long that takes."""
        if not work.model:
            return 0.0
        if work.model in self.loaded:
            self.loaded.remove(work.model)
            self.loaded.append(work.model)
            return 0.0
        model = self._models[work.model]
        while self.loaded and self._used() + model.vram_gb > self.vram_gb:
            self.loaded.pop(0)
        self.loaded.append(work.model)
        self.loads += 1
        return model.load_s

    def _used(self) -> float:
        return sum(self._models[name].vram_gb for name in self.loaded)


class Simulation:
    def __init__(self, described: Description, trace: Sequence[TracedJob], sender: Sender) -> None:
        models = {model.name: model for model in described.models}
        self.machines = {
            one.name: SimulatedAttempt(one, models, classes=sender.classes)
            for one in described.workers
        }
        self._sender = sender
        self._events: list[tuple[float, int, Callable[[float], object]]] = []
        """What will happen, told when it does."""
        self._count = count()
        self._left = len(trace)
        self._attempts: dict[int, int] = {}
        self.waits: dict[int, tuple[str, float]] = {}
        """By job: its class, and seconds from its arrival until its work began, model loaded."""
        self.succeeded = self.failed = 0
        self.ended_at = 0.0
        self._looks: set[float] = set()
        for work in trace:
            self._at(work.at, partial(sender.arrived, work))
        for outage in described.failures.outages:
            machine = self.machines[outage.worker]
            self._at(outage.at_s, partial(self._down, machine))
            self._at(outage.at_s + outage.for_s, partial(self._up, machine))

    def run(self) -> None:
        while self._left:
            if not self._events:
                raise RuntimeError(f"{self._left} jobs wait and nothing will ever happen")
            now = self._events[0][0]
            # What happens at one moment is decided about together.
            while self._events and self._events[0][0] == now:
                heapq.heappop(self._events)[-1](now)
            for work, worker in self._sender.orders(now, list(self.machines.values())):
                self.machines[worker].takes(work)
                self._begin(self.machines[worker], now)
            look = self._sender.next_look(now)
            if look is not None and look not in self._looks:
                self._looks.add(look)
                self._at(look, self._looks.discard)

    def _at(self, when: float, what: Callable[[float], object]) -> None:
        heapq.heappush(self._events, (when, next(self._count), what))

    def _begin(self, machine: SimulatedAttempt, now: float) -> None:
        if machine.current is not None or not machine.waiting or not machine.up:
            return
        work = heapq.heappop(machine.waiting)[-1]
        attempt = self._attempts[work.number] = self._attempts.get(work.number, 0) + 1
        load_s = machine.load(work)
        seconds = work.seconds / machine.speed
        fails = attempt <= len(work.fails)
        if fails:
            seconds *= work.fails[attempt - 1]
        machine.current, machine.began = work, now
        machine.run += 1
        ready = now + load_s
        self.waits.setdefault(work.number, (work.queue_class.value, ready - work.at))
        self._sender.began(work, machine.name, now)
        self._at(ready + seconds, partial(self._end, machine, machine.run, load_s, fails))

    def _end(
        self, machine: SimulatedAttempt, run: int, load_s: float, fails: bool, now: float
    ) -> None:
        work = machine.current
        if machine.run != run or work is None:
            return
        machine.current = None
        took = now - machine.began
        machine.loading_s += load_s
        machine.busy_s += took - load_s
        if not self._sender.ended(work, machine.name, now, took, fails=fails):
            self.succeeded += not fails
            self.failed += fails
            self._done(now)
        self._begin(machine, now)

    def _done(self, now: float) -> None:
        self._left -= 1
        self.ended_at = now

    def _up(self, machine: SimulatedAttempt, now: float) -> None:
        machine.up = True

    def _down(self, machine: SimulatedAttempt, now: float) -> None:
        held = machine.held
        if machine.current is not None:
            machine.busy_s += now - machine.began  # for nothing, but busy
        machine.up, machine.current, machine.waiting, machine.loaded = False, None, [], []
        for _ in range(self._sender.lost(machine.name, held, now)):
            self.failed += 1
            self._done(now)
