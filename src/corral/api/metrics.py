"""`/metrics`: what the controller counted, in the text format of Prometheus.

The library is loaded by the first scrape: a controller that nobody scrapes never pays for it.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from msgspec import Struct

from corral.api.rest.answers import errors
from corral.controller.files.blobs import Blobs
from corral.controller.loop import Loop
from corral.controller.output.spool import Spool
from corral.controller.status.statistics import Histogram, Statistics
from corral.controller.store import Store
from corral.core.job import QueueClass, State
from corral.core.worker import Reading, Worker

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

SIZES_S = 60.0
"""How old the sizes of folders may be: counting them means looking at every file."""
FIRST_SIZES_S = 1.0
"""How long a scrape waits for them where they are not known yet."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Sources(Struct, frozen=True):
    """Where the numbers come from."""

    statistics: Statistics
    store: Store
    loop: Loop
    blobs: Blobs
    spool: Spool
    version: str
    started_at: float


class Metrics:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._registry: CollectorRegistry | None = None
        self._workers: Sequence[Worker] = ()
        self._sizes: dict[str, int] = {}
        self._measured_at = 0.0
        self._measuring: asyncio.Task[None] | None = None

    def router(self, check: Callable[[str | None], None]) -> APIRouter:
        """The route; `check` raises where the header has no token that is good for reading."""
        router = APIRouter()

        @router.get(
            "/metrics",
            summary="Metrics for Prometheus",
            response_class=PlainTextResponse,
            responses=errors(401, 403, 503),
        )
        async def metrics(request: Request) -> Response:
            check(request.headers.get("authorization"))
            return Response(await self.text(), media_type=CONTENT_TYPE)

        return router

    async def text(self) -> bytes:
        await asyncio.to_thread(importlib.import_module, "prometheus_client")  # 70 ms, once
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        if self._registry is None:
            self._registry = CollectorRegistry(auto_describe=False)
            self._registry.register(self)
            ProcessCollector(registry=self._registry)
        self._workers = self._sources.loop.workers()
        await self._measure()
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Nothing is collected when the registry takes this in."""
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
        folders = {"blobs": self._sources.blobs.folder, "spool": self._sources.spool.folder}
        sizes = {name: await asyncio.to_thread(_size, folder) for name, folder in folders.items()}
        self._sizes, self._measured_at = sizes, time.monotonic()

    # --- the families ---

    def collect(self) -> Iterator[Metric]:
        yield from self._jobs()
        yield from self._queue()
        yield from self._work()
        yield from self._attempts()
        yield from self._machines()
        yield from gpus(self._workers)
        yield from self._bytes()
        yield from self._controller()

    def _jobs(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        world, counted = self._sources.store.world, self._sources.statistics
        yield GaugeMetricFamily(
            "corral_jobs_active", "Jobs that have not ended: waiting, placed, running or stopping.",
            len(world.heads),
        )  # fmt: skip
        states = dict.fromkeys((State.QUEUED, State.PLACED, State.RUNNING, State.STOPPING), 0)
        states[State.QUEUED] = sum(world.waiting.values())
        for held in world.held.values():
            for head in held.values():
                states[head.state] += 1
        now = GaugeMetricFamily("corral_jobs", "Living jobs by state.", labels=["state"])
        for state, count in states.items():
            now.add_metric([state], count)
        yield now
        submitted = CounterMetricFamily(
            "corral_jobs_submitted", "Jobs accepted since the start.", labels=["class"]
        )
        for queue_class in QueueClass:
            submitted.add_metric([queue_class], counted.submitted.get(queue_class, 0))
        yield submitted
        ended = CounterMetricFamily(
            "corral_jobs_ended", "Jobs that ended since the start, by end state.", labels=["state"]
        )
        for end in (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.REJECTED):
            ended.add_metric([end], counted.ended.get(end, 0))
        yield ended
        ratio = GaugeMetricFamily(
            "corral_job_success_ratio",
            "Share of the last 1000 jobs that succeeded or failed which succeeded, across "
            "restarts; absent before the first.",
        )
        if (share := counted.recent().success_ratio) is not None:
            ratio.add_metric([], share)
        yield ratio

    def _queue(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        world, now = self._sources.store.world, time.time()
        depth = GaugeMetricFamily(
            "corral_queue_depth", "Jobs that wait for a worker.", labels=["class"]
        )
        oldest = GaugeMetricFamily(
            "corral_queue_oldest_wait_seconds",
            "How long the first in line has waited; 0 where none waits.",
            labels=["class"],
        )
        since = world.oldest_waits()
        for queue_class in QueueClass:
            depth.add_metric([queue_class], world.waiting[queue_class])
            oldest.add_metric([queue_class], max(now - since.get(queue_class, now), 0.0))
        yield depth
        yield oldest
        paused = bool(self._sources.loop.why_paused())
        yield GaugeMetricFamily("corral_queue_paused", "1 while nothing new is placed.", paused)

    def _work(self) -> Iterator[Metric]:
        counted = self._sources.statistics
        yield _histograms(
            "corral_queue_wait_seconds",
            "From the submission of a job to the start of its first attempt.",
            ["class"],
            {(name,): waits for name, waits in counted.waits.items()},
        )
        yield _histograms(
            "corral_job_duration_seconds",
            "How long the last attempt of succeeded and failed jobs ran.",
            ["class", "workload"],
            counted.durations,
        )
        yield _histograms(
            "corral_commit_seconds", "Journal commits, sync included.", [], {(): counted.commits}
        )
        yield _histograms(
            "corral_commit_facts", "Facts that shared a commit.", [], {(): counted.commit_facts}
        )
        yield _histograms(
            "corral_decision_seconds", "Scheduler decisions.", [], {(): counted.decisions}
        )

    def _attempts(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily

        attempts = CounterMetricFamily(
            "corral_attempts",
            "Attempts that ended since the start, by outcome and class of failure.",
            labels=["outcome", "failure"],
        )
        outcomes = dict.fromkeys(
            (("succeeded", ""), ("failed", "job"), ("lost", ""), ("cancelled", ""),
             ("returned", "")), 0,
        )  # fmt: skip
        for (outcome, failure), count in {**outcomes, **self._sources.statistics.attempts}.items():
            attempts.add_metric([outcome, failure], count)
        yield attempts

    def _machines(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        yield GaugeMetricFamily(
            "corral_workers_connected",
            "Workers that are connected now.",
            sum(worker.connected for worker in self._workers),
        )
        connected = GaugeMetricFamily(
            "corral_worker_connected", "1 while this worker is connected.", labels=["worker"]
        )
        seen = GaugeMetricFamily(
            "corral_worker_last_seen_timestamp_seconds",
            "When this worker was last heard of.",
            labels=["worker"],
        )
        circuit = GaugeMetricFamily(
            "corral_worker_circuit_open",
            "1 while this worker gets nothing, or one probe at most, after failures of its own.",
            labels=["worker"],
        )
        circuits = self._sources.store.world.circuits
        for worker in self._workers:
            opened = worker.id in circuits and circuits[worker.id].until > 0
            circuit.add_metric([worker.name], int(opened))
            connected.add_metric([worker.name], int(worker.connected))
            seen.add_metric([worker.name], worker.seen_at)
        yield connected
        yield seen
        yield circuit

    def _bytes(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        blobs, spool = self._sources.blobs, self._sources.spool
        path = self._sources.store.journal.path
        stored = GaugeMetricFamily(
            "corral_stored_bytes", "Bytes in the home; blobs and spool are counted once a minute.",
            labels=["part"],
        )  # fmt: skip
        journal = sum(map(_file_size, (path, Path(f"{path}-wal"))))
        for name, size in {"journal": journal, **self._sizes}.items():
            stored.add_metric([name], size)
        yield stored
        yield GaugeMetricFamily(
            "corral_home_free_bytes", "Room left on the disk of the home.", _free(path.parent)
        )
        yield CounterMetricFamily(
            "corral_output_received_bytes", "Output and progress of jobs.", spool.received
        )
        yield CounterMetricFamily(
            "corral_blob_received_bytes",
            "Packages, results, artifacts and checkpoints that were stored.",
            blobs.received,
        )
        yield CounterMetricFamily(
            "corral_blob_sent_bytes", "Results and artifacts that clients fetched.", blobs.sent
        )

    def _controller(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        yield GaugeMetricFamily(
            "corral_start_timestamp_seconds", "When the controller started.",
            self._sources.started_at,
        )  # fmt: skip
        info = GaugeMetricFamily(
            "corral_build_info", "Always 1; the version is its label.", labels=["version"]
        )
        info.add_metric([self._sources.version], 1)
        yield info


def gpus(workers: Sequence[Worker]) -> Iterator[Metric]:
    """What drivers said a moment ago; nothing of GPUs that are only declared."""
    from prometheus_client.core import GaugeMetricFamily

    read: dict[tuple[str, str], Callable[[Reading], float | None]] = {
        ("vram_free_bytes", "VRAM that nobody holds."): lambda one: one.free_gb * 1e9,
        ("vram_ours_bytes", "VRAM that jobs hold."): lambda one: one.ours_gb * 1e9,
        ("vram_others_bytes", "VRAM of all other processes."): lambda one: one.others_gb * 1e9,
        ("temperature_celsius", "How hot it is."): lambda one: one.temperature_c,
        ("utilisation_ratio", "How much it was at work, 0 to 1."): lambda one: one.utilisation,
        ("lost", "1 while its driver does not answer for it."): lambda one: one.lost,
    }
    for (name, told), value in read.items():
        family = GaugeMetricFamily(f"corral_gpu_{name}", told, labels=["worker", "gpu"])
        for worker in workers:
            for one in worker.readings:
                if (number := value(one)) is not None:
                    family.add_metric([worker.name, one.uuid], number)
        yield family


def _histograms(
    name: str,
    told: str,
    labels: Sequence[str],
    found: dict[tuple[()], Histogram]
    | dict[tuple[str], Histogram]
    | dict[tuple[str, str], Histogram],
) -> Metric:
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


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free
