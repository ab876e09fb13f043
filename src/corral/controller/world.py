"""What the controller keeps in memory: heads of living jobs, lines of waiting ones, who holds what.

It changes only through `apply`, with heads whose facts are already on disk.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from corral.controller.waiting_line import WaitingLine
from corral.core.frames import ProgressFrame
from corral.core.job import Head, JobId, QueueClass, Shape, State
from corral.core.worker import Worker
from corral.scheduler.circuit import CLOSED, Circuit
from corral.scheduler.fit import Held
from corral.scheduler.plan import Line, Placement, Seat, Snapshot, Waiting

PACES = 64
"""How many workers are remembered for a shape: those that did such work last."""

FRONT = 512
"""How much of a line one decision sees; it decides again while it places."""


class Run(Struct):
    """Attempts that are alike; of those that have begun only one."""

    number: int
    held: Held
    count: int = 1


class HeldAttempts:
    """What a worker holds, as a decision sees it. Attempts that are alike and came one after the
    other are one entry with a count: short jobs wait by the hundred and cost a decision no more."""

    __slots__ = ("_last", "_next", "_of", "_runs")

    def __init__(self) -> None:
        self._of: dict[JobId, Run] = {}
        self._runs: dict[int, Run] = {}
        """In the order in which their first ones came."""
        self._last: Run | None = None
        """Of those that wait."""
        self._next = 0

    def __bool__(self) -> bool:
        return bool(self._of)

    def add(self, job: JobId, held: Held) -> None:
        self.remove(job)
        last = self._last
        if last is not None and held.follows(last.held):
            last.count += 1
            self._of[job] = last
            return
        self._of[job] = self._runs[self._next] = run = Run(self._next, held)
        self._next += 1
        if not held.started:  # where those that have begun stand among the others is all the same
            self._last = run

    def remove(self, job: JobId) -> None:
        run = self._of.pop(job, None)
        if run is None:
            return
        run.count -= 1
        if not run.count:
            del self._runs[run.number]
            if run is self._last:
                self._last = None

    def all(self) -> tuple[Held, ...]:
        return tuple(
            run.held if run.count == 1 else replace(run.held, count=run.count)
            for run in self._runs.values()
        )


class World:
    def __init__(self) -> None:
        self.heads: dict[JobId, Head] = {}
        self.keys: dict[str, JobId] = {}
        self.held: dict[str, dict[JobId, Head]] = {}
        """By worker, in the order of placement."""
        self._holds: dict[str, HeldAttempts] = {}
        """The same as a decision sees it."""
        self.batches: dict[str, int] = {}
        """Living jobs by batch."""
        self.lines: dict[Shape, WaitingLine] = {}
        """Waiting jobs whose time has come, by shape."""
        self._reserved: dict[str, HeldAttempts] = {}
        """By worker: placements that are on their way to the disk."""
        self._delayed: list[tuple[float, int, JobId]] = []
        self.typical_s: dict[Shape, float] = {}
        """How long attempts of a shape usually take; missing before the first."""
        self._paces: dict[Shape, dict[str, tuple[float, float]]] = {}
        """By shape and worker: how long it takes there, and when it last did."""
        self.waiting = {QueueClass.INTERACTIVE: 0, QueueClass.BATCH: 0}
        self.last_aged_at = 0.0
        self.circuits: dict[str, Circuit] = {}
        """What is held against workers; a restart forgets it, at the cost of a few attempts."""
        self.names: dict[str, str] = {}
        """What people call the workers, by id."""
        self.progress: dict[JobId, ProgressFrame] = {}
        """The latest word of running attempts; the spool has all of them."""
        self.digests: dict[JobId, str] = {}
        """Of the documents that attempts were sent; the journal has all of them."""

    # --- changing ---

    def apply(self, head: Head) -> None:
        """Takes a job's new head, whatever its old one was."""
        old, state, batch = self.heads.get(head.id), head.state, head.given.batch
        if old is not None:
            self._forget(old)
            if self.progress and (old.attempt != head.attempt or not head.state.held):
                self.progress.pop(old.id, None)
        elif not state.ended:
            if head.key:
                self.keys[head.key] = head.id
            if batch:
                self.batches[batch] = self.batches.get(batch, 0) + 1
        if state.ended:
            self.digests.pop(head.id, None)
            if old is not None:
                del self.heads[head.id]
                self.keys.pop(head.key, None)
                if batch:
                    self.batches[batch] -= 1
                    if not self.batches[batch]:
                        del self.batches[batch]
            return
        self.heads[head.id] = head
        if state is State.QUEUED:
            self.digests.pop(head.id, None)
            self.waiting[head.shape.queue_class] += 1
            if head.course.not_before:
                heapq.heappush(self._delayed, (head.course.not_before, head.last_seq, head.id))
            else:
                self._line_up(head)
        else:
            course, shape = head.course, head.shape
            worker = course.worker
            self.held.setdefault(worker, {})[head.id] = head
            holds = self._holds.get(worker)
            if holds is None:
                holds = self._holds[worker] = HeldAttempts()
            held = Held(shape.needs, course.devices, course.started_at > 0, shape.above_vram_gb)
            holds.add(head.id, held)
            reserved = self._reserved.get(worker)
            if reserved:
                reserved.remove(head.id)

    def _forget(self, old: Head) -> None:
        if old.state is State.QUEUED:
            self.waiting[old.shape.queue_class] -= 1
            line = self.lines.get(old.shape)
            if line is not None:
                line.remove(old.id, old.place)
                if not line:
                    del self.lines[old.shape]
        elif old.state.held:
            worker = old.worker
            held = self.held.get(worker, {})
            held.pop(old.id, None)
            if not held:
                self.held.pop(worker, None)
                self._holds.pop(worker, None)
            elif worker in self._holds:
                self._holds[worker].remove(old.id)

    def _line_up(self, head: Head) -> None:
        self.lines.setdefault(head.shape, WaitingLine()).add(head)

    def wake_due(self, now: float, longest_s: float = math.inf) -> float | None:
        """Lines up the retries whose time has come; returns when the next one's comes. Where one
        would wait for more than `longest_s` the clock was put back since: its time has come."""
        while self._delayed:
            due, seq, job = self._delayed[0]
            head = self.heads.get(job)
            if head is None or head.last_seq != seq or head.state is not State.QUEUED:
                heapq.heappop(self._delayed)
            elif due <= now or due - now > longest_s:
                heapq.heappop(self._delayed)
                self._line_up(head)
            else:
                return due
        return None

    def reserve(self, placements: Sequence[Placement], shapes: Mapping[JobId, Shape]) -> None:
        """Takes what placements will hold while they are written; `shapes` of jobs not here yet."""
        for placement in placements:
            shape = shapes.get(placement.job) or self.heads[placement.job].shape
            held = Held(needs=shape.needs, above_vram_gb=shape.above_vram_gb)
            self._reserved.setdefault(placement.worker, HeldAttempts()).add(placement.job, held)

    def release(self, placements: Sequence[Placement]) -> None:
        for placement in placements:
            self._reserved[placement.worker].remove(placement.job)

    def took(self, shape: Shape, seconds: float, worker: str = "", at: float = 0.0) -> None:
        """Learns how long attempts of a shape take, everywhere and on this worker; quick to grow,
        slow to shrink."""
        seconds = max(seconds, 1e-4)
        old = self.typical_s.get(shape, seconds)
        weight = 0.5 if seconds > old else 0.1
        self.typical_s[shape] = old + weight * (seconds - old)
        if len(self.typical_s) > 4096:
            oldest = next(iter(self.typical_s))
            del self.typical_s[oldest]
            self._paces.pop(oldest, None)
        if worker:
            paces = self._paces.setdefault(shape, {})
            before, _ = paces.pop(worker, (seconds, at))
            paces[worker] = before + 0.3 * (seconds - before), at
            if len(paces) > PACES:
                del paces[next(iter(paces))]

    # --- looking ---

    def snapshot(
        self,
        now: float,
        workers: Sequence[Worker],
        aging_s: float,
        lines: Mapping[Shape, Iterable[Waiting]] | None = None,
        *,
        keep_for_interactive: int = 0,
    ) -> Snapshot:
        """What a decision needs to know, about those who wait or about other `lines`."""
        paces = self._paces if len(workers) > 1 else {}
        fronts = lines
        if fronts is None:
            fronts = {shape: line.front(FRONT) for shape, line in self.lines.items()}
        return Snapshot(
            now=now,
            lines=tuple(
                Line(
                    shape,
                    tuple(front),
                    self.typical_s.get(shape, 0.0),
                    paces[shape].copy() if shape in paces else {},
                )
                for shape, front in fronts.items()
            ),
            seats=self.seats(workers),
            aging_s=aging_s,
            last_aged_at=self.last_aged_at,
            keep_for_interactive=keep_for_interactive,
        )

    def seats(self, workers: Sequence[Worker]) -> tuple[Seat, ...]:
        holds, reserved, circuits = self._holds, self._reserved, self.circuits
        seats = []
        for worker in workers:
            has = holds[worker.id].all() if worker.id in holds else ()
            if coming := reserved.get(worker.id):
                has += coming.all()
            circuit = circuits.get(worker.id, CLOSED) if circuits else CLOSED
            seats.append(Seat(worker, has, circuit))
        return tuple(seats)

    def next_probe(self, now: float) -> float | None:
        """When the next open circuit lets a job through."""
        return min((one.until for one in self.circuits.values() if one.is_open(now)), default=None)

    @property
    def anybody_waits(self) -> bool:
        return bool(self.lines or self._delayed)

    def oldest_wait(self) -> float | None:
        """When the longest-waiting job was submitted, for the aging clock."""
        return min((line.first.submitted_at for line in self.lines.values()), default=None)

    def oldest_waits(self) -> dict[QueueClass, float]:
        found: dict[QueueClass, float] = {}
        for shape, line in self.lines.items():
            since = line.first.submitted_at
            found[shape.queue_class] = min(found.get(shape.queue_class, since), since)
        return found

    def position(self, head: Head) -> int:
        """How many jobs are ahead of a waiting one in its own line."""
        line = self.lines.get(head.shape)
        return line.ahead_of(head.id, head.place) if line is not None else 0
