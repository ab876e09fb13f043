"""What the controller counts about its own work, for `/metrics` and the cluster's status.

Everything here is plain numbers, added up when a group is committed: a job costs about a
microsecond. What a scraper sees is built from them when it asks, and only then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from corral.controller.journal.record import Change
from corral.controller.store import Store
from corral.core.events import (
    AttemptStarted,
    JobCancelled,
    JobFailed,
    JobRejected,
    JobRequeued,
    JobSubmitted,
    JobSucceeded,
)
from corral.core.failures import classify
from corral.core.job import Head
from corral.scheduler.circuit import RETURNED

WINDOW = 1000
"""How many ended jobs the success ratio looks back on."""

SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)
"""Of durations and of waits."""
COMMITS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
COMMIT_FACTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
DECISIONS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)

LOST = "worker_lost"


class Histogram:
    """Counts by upper bound, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as Prometheus writes them: the last one is everything."""
        seen, found = 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            seen += count
            found.append((bound, float(seen)))
        return found


class Statistics:
    """Listens to one store. Totals count from the start of this process, as Prometheus expects
    of counters; what is said about recent jobs survives a restart."""

    def __init__(self) -> None:
        self.submitted: dict[str, int] = defaultdict(int)
        """By queue class."""
        self.ended: dict[str, int] = defaultdict(int)
        """By end state."""
        self.attempts: dict[tuple[str, str], int] = defaultdict(int)
        """By outcome and, where it failed, class of the failure."""
        self.durations: dict[tuple[str, str], Histogram] = defaultdict(partial(Histogram, SECONDS))
        """By queue class and workload."""
        self.waits: dict[str, Histogram] = defaultdict(partial(Histogram, SECONDS))
        """By queue class: from submission to the first start."""
        self.commits, self.commit_facts = Histogram(COMMITS_S), Histogram(COMMIT_FACTS)
        self.decisions = Histogram(DECISIONS_S)
        self._recent: deque[bool] = deque(maxlen=WINDOW)
        """Whether the last jobs succeeded. Cancelled and rejected ones say nothing about that."""
        self._takes: dict[type, Callable[[Any, Head], None]] = {
            JobSubmitted: self._submitted,
            AttemptStarted: self._started,
            JobSucceeded: self._succeeded,
            JobFailed: self._failed,
            JobRequeued: self._requeued,
            JobCancelled: self._cancelled,
            JobRejected: self._rejected,
        }

    def listen(self, store: Store) -> None:
        """Remembers how the last jobs ended, and counts from here on."""
        ends = store.journal.last_ends(WINDOW)
        self._recent.extend(
            isinstance(fact, JobSucceeded)
            for fact in ends
            if isinstance(fact, (JobSucceeded, JobFailed))
        )
        store.listen(self.take)
        store.committed = self.committed

    def success_ratio(self) -> float | None:
        """None before the first end."""
        return sum(self._recent) / len(self._recent) if self._recent else None

    # --- what happens ---

    def take(self, changes: Sequence[Change]) -> None:
        takes = self._takes
        for change in changes:
            take = takes.get(type(change.fact))
            if take is not None:
                take(change.fact, change.head)

    def committed(self, seconds: float, facts: int) -> None:
        self.commits.add(seconds)
        self.commit_facts.add(facts)

    def _submitted(self, fact: JobSubmitted, head: Head) -> None:
        self.submitted[head.shape.queue_class] += 1

    def _started(self, fact: AttemptStarted, head: Head) -> None:
        if not head.course.failures and not head.course.losses:
            self._waited(head, fact.at)

    def _waited(self, head: Head, until: float) -> None:
        self.waits[head.shape.queue_class].add(max(until - head.submitted_at, 0.0))

    def _succeeded(self, fact: JobSucceeded, head: Head) -> None:
        course = head.course
        self.attempts["succeeded", ""] += 1
        self.ended["succeeded"] += 1
        self._took(head, fact.seconds)
        self._recent.append(True)
        if not course.started_at and not course.failures and not course.losses:
            self._waited(head, fact.at - fact.seconds)  # its start and its end came in one breath

    def _failed(self, fact: JobFailed, head: Head) -> None:
        self.ended["failed"] += 1
        self._recent.append(False)
        if head.worker:
            self._attempt_failed(fact.failure.code)
            self._took(head, fact.seconds)

    def _requeued(self, fact: JobRequeued, head: Head) -> None:
        if fact.code == RETURNED:
            self.attempts[RETURNED, ""] += 1
        else:
            self._attempt_failed(fact.code)

    def _cancelled(self, fact: JobCancelled, head: Head) -> None:
        self.ended["cancelled"] += 1
        if head.worker:
            self.attempts["cancelled", ""] += 1

    def _rejected(self, fact: JobRejected, head: Head) -> None:
        self.ended["rejected"] += 1

    def _attempt_failed(self, code: str) -> None:
        self.attempts[("lost", "") if code == LOST else ("failed", classify(code))] += 1

    def _took(self, head: Head, seconds: float) -> None:
        self.durations[head.shape.queue_class, head.shape.workload].add(seconds)
