"""`/metrics`, in the text format of Prometheus. Its library is loaded by the first scrape: a
controller that nobody scrapes never pays for it."""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from corral.api.auth import bearer
from corral.api.parts import Parts
from corral.api.rest.answers import errors
from corral.api.roles import ROUTES
from corral.controller.output.spool import Spool
from corral.controller.status.statistics import Histogram, Statistics
from corral.core.job import QueueClass, State
from corral.core.worker import Reading, Worker

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

SIZES_S = 60.0
"""How old the sizes of folders may be: counting them means looking at every file."""
FIRST_SIZES_S = 1.0
"""How long a scrape waits for them where they are not known yet."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


Samples = Iterable[tuple[str | tuple[str, ...], float | None]]
"""Numbers by the values of their labels, and nothing where there is none."""


class Metrics:
    def __init__(self, parts: Parts, statistics: Statistics, spool: Spool) -> None:
        self._parts, self._counted, self._spool = parts, statistics, spool
        self._registry: CollectorRegistry | None = None
        self._workers: Sequence[Worker] = ()
        self._sizes: dict[str, int] = {}
        self._measured_at = 0.0
        self._measuring: asyncio.Task[None] | None = None

    def routes(self) -> APIRouter:
        router = APIRouter()

        @router.get(
            "/metrics",
            summary="Metrics for Prometheus",
            response_class=PlainTextResponse,
            responses=errors(401, 403, 503),
        )
        async def metrics(request: Request) -> Response:
            token = bearer(request.headers.get("authorization"))
            self._parts.access.caller(token).needs(ROUTES["GET /metrics"])
            return Response(await self.text(), media_type=CONTENT_TYPE)

        return router

    async def text(self) -> bytes:
        await asyncio.to_thread(importlib.import_module, "prometheus_client")  # 70 ms, once
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        if self._registry is None:
            self._registry = CollectorRegistry(auto_describe=False)
            self._registry.register(self)
            ProcessCollector(registry=self._registry)
        self._workers = self._parts.loop.workers()
        await self._measure()
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Empty, so that registering collects nothing."""
        return []

    # --- sizes on disk ---

    async def _measure(self) -> None:
        if self._measuring is None or self._measuring.done():
            if time.monotonic() - self._measured_at < SIZES_S and self._sizes:
                return
            self._measuring = asyncio.create_task(self._count_sizes())
        if not self._sizes:
            await asyncio.wait((self._measuring,), timeout=FIRST_SIZES_S)

    async def _count_sizes(self) -> None:
        folders = {"blobs": self._parts.blobs.folder, "spool": self._spool.folder}
        sizes = {name: await asyncio.to_thread(_size, folder) for name, folder in folders.items()}
        self._sizes, self._measured_at = sizes, time.monotonic()

    # --- the families ---

    def collect(self) -> Iterator[Metric]:
        started_at, version = self._parts.started_at, self._parts.version
        yield from self._jobs()
        yield from self._queue()
        yield from self._work()
        yield from self._attempts()
        yield from self._machines()
        yield from gpus(self._workers)
        yield from self._bytes()
        yield _gauge("corral_start_timestamp_seconds", "When the controller started.", started_at)
        told = "Always 1; the version is its label."
        yield _gauge("corral_build_info", told, [(version, 1)], "version")

    def _jobs(self) -> Iterator[Metric]:
        world, counted = self._parts.store.world, self._counted
        states = dict.fromkeys((State.QUEUED, State.PLACED, State.RUNNING, State.STOPPING), 0)
        states[State.QUEUED] = sum(world.waiting.values())
        for held in world.held.values():
            for head in held.values():
                states[head.state] += 1
        submitted = {one: counted.submitted.get(one, 0) for one in QueueClass}
        ends = (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.REJECTED)
        ended = {end: counted.ended.get(end, 0) for end in ends}
        yield _gauge(
            "corral_jobs_active",
            "Jobs that have not ended: waiting, placed, running or stopping.",
            len(world.heads),
        )
        yield _gauge("corral_jobs", "Living jobs by state.", states.items(), "state")
        yield _counter(
            "corral_jobs_submitted", "Jobs accepted since the start.", submitted.items(), "class"
        )
        yield _counter(
            "corral_jobs_ended",
            "Jobs that ended since the start, by end state.",
            ended.items(),
            "state",
        )
        yield _gauge(
            "corral_job_success_ratio",
            "Share of the last 1000 jobs that succeeded or failed which succeeded, across "
            "restarts; absent before the first.",
            counted.success_ratio(),
        )

    def _queue(self) -> Iterator[Metric]:
        world, now = self._parts.store.world, time.time()
        depth = {one: world.waiting[one] for one in QueueClass}
        since = world.oldest_waits()
        oldest = {one: max(now - since.get(one, now), 0.0) for one in QueueClass}
        yield _gauge("corral_queue_depth", "Jobs that wait for a worker.", depth.items(), "class")
        yield _gauge(
            "corral_queue_oldest_wait_seconds",
            "How long the first in line has waited; 0 where none waits.",
            oldest.items(),
            "class",
        )
        paused = bool(self._parts.loop.why_paused())
        yield _gauge("corral_queue_paused", "1 while nothing new is placed.", paused)

    def _work(self) -> Iterator[Metric]:
        counted = self._counted
        yield _histograms(
            "corral_queue_wait_seconds",
            "From the submission of a job to the start of its first attempt.",
            {(name,): waits for name, waits in counted.waits.items()},
            "class",
        )
        yield _histograms(
            "corral_job_duration_seconds",
            "How long the last attempt of succeeded and failed jobs ran.",
            counted.durations,
            "class",
            "workload",
        )
        for name, told, found in (
            ("corral_commit_seconds", "Journal commits, sync included.", counted.commits),
            ("corral_commit_facts", "Facts that shared a commit.", counted.commit_facts),
            ("corral_decision_seconds", "Scheduler decisions.", counted.decisions),
        ):
            yield _histograms(name, told, {(): found})

    def _attempts(self) -> Iterator[Metric]:
        outcomes = dict.fromkeys(
            (("succeeded", ""), ("failed", "job"), ("lost", ""), ("cancelled", ""),
             ("returned", "")), 0,
        )  # fmt: skip
        yield _counter(
            "corral_attempts",
            "Attempts that ended since the start, by outcome and class of failure.",
            {**outcomes, **self._counted.attempts}.items(),
            "outcome",
            "failure",
        )

    def _machines(self) -> Iterator[Metric]:
        workers, circuits = self._workers, self._parts.store.world.circuits
        opened = {one for one, circuit in circuits.items() if circuit.until > 0}
        yield _gauge(
            "corral_workers_connected",
            "Workers that are connected now.",
            sum(worker.connected for worker in workers),
        )
        told = "1 while this worker gets nothing, or one probe at most, after failures of its own."
        read: dict[tuple[str, str], Callable[[Worker], float]] = {
            ("connected", "1 while this worker is connected."): lambda one: one.connected,
            ("last_seen_timestamp_seconds", "When this worker was last heard of."): (
                lambda one: one.seen_at
            ),
            ("circuit_open", told): lambda one: one.id in opened,
        }
        for (name, told), value in read.items():
            samples = [(one.name, value(one)) for one in workers]
            yield _gauge(f"corral_worker_{name}", told, samples, "worker")

    def _bytes(self) -> Iterator[Metric]:
        path, blobs = self._parts.store.journal.path, self._parts.blobs
        journal = sum(map(_file_size, (path, Path(f"{path}-wal"))))
        yield _gauge(
            "corral_stored_bytes",
            "Bytes in the home; blobs and spool are counted once a minute.",
            {"journal": journal, **self._sizes}.items(),
            "part",
        )
        free = shutil.disk_usage(path.parent).free
        yield _gauge("corral_home_free_bytes", "Room left on the disk of the home.", free)
        received = self._spool.received
        yield _counter("corral_output_received_bytes", "Output and progress of jobs.", received)
        yield _counter(
            "corral_blob_received_bytes",
            "Packages, results, artifacts and checkpoints that were stored.",
            blobs.received,
        )
        yield _counter(
            "corral_blob_sent_bytes", "Results and artifacts that clients fetched.", blobs.sent
        )


def gpus(workers: Sequence[Worker]) -> Iterator[Metric]:
    """What drivers said a moment ago; nothing of GPUs that are only declared."""
    read: dict[tuple[str, str], Callable[[Reading], float | None]] = {
        ("vram_free_bytes", "VRAM that nobody holds."): lambda one: one.free_gb * 1e9,
        ("vram_ours_bytes", "VRAM that jobs hold."): lambda one: one.ours_gb * 1e9,
        ("vram_others_bytes", "VRAM of all other processes."): lambda one: one.others_gb * 1e9,
        ("temperature_celsius", "How hot it is."): lambda one: one.temperature_c,
        ("utilisation_ratio", "How much it was at work, 0 to 1."): lambda one: one.utilisation,
        ("lost", "1 while its driver does not answer for it."): lambda one: one.lost,
    }
    found = [(worker.name, reading) for worker in workers for reading in worker.readings]
    for (name, told), value in read.items():
        samples = [((worker, one.uuid), value(one)) for worker, one in found]
        yield _gauge(f"corral_gpu_{name}", told, samples, "worker", "gpu")


def _gauge(name: str, told: str, found: Samples | float | None, *labels: str) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(name, told, labels=labels), found)


def _counter(name: str, told: str, found: Samples | float, *labels: str) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    return _filled(CounterMetricFamily(name, told, labels=labels), found)


def _filled(
    family: CounterMetricFamily | GaugeMetricFamily, found: Samples | float | None
) -> Metric:
    for values, number in found if isinstance(found, Iterable) else [((), found)]:
        if number is not None:
            family.add_metric((values,) if isinstance(values, str) else values, number)
    return family


def _histograms(name: str, told: str, found: Mapping[Any, Histogram], *labels: str) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(name, told, labels=labels)
    for values, histogram in found.items():
        family.add_metric(list(values), histogram.buckets(), sum_value=histogram.total)
    return family


def _size(folder: Path) -> int:
    """Bytes of the files below; in a thread, with pauses, so that nobody else waits for it."""
    total, seen = 0, 0
    for place, _, names in os.walk(folder):
        for name in names:
            total += _file_size(os.path.join(place, name))
            seen += 1
            if not seen % 200:
                time.sleep(0.001)
    return total


def _file_size(path: str | Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
