"""Much of one thing, and a controller that answers others as if it were not there: 100,000 kept
outputs, 5,000 readers that do not read, a job with 20,000 artifacts, a million cancelled jobs.

Beside each, somebody asks for `/health` 20 times a second.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.bars import Figure
from bench.controllers import TWO_SLOTS, Controller, held_slots
from bench.other_process import OtherProcess
from corral.contract import corral_pb2 as pb
from corral.sdk import figures
from corral.sdk.aio import AsyncClient
from corral.sdk.client import Client

RATE = 20.0
MEMORY_MB, HEALTH_MS, FLAT = 600.0, 100.0, 0.8


class Extremes:
    def __init__(self, *, quick: bool) -> None:
        self.probe_s = 1.5 if quick else 30.0
        self.outputs = 500 if quick else 100_000
        self.sample = 200 if quick else 4_000
        self.readers = 50 if quick else 5_000
        self.artifacts = 100 if quick else 20_000
        self.cancelled = 5_000 if quick else 1_000_000


@contextlib.contextmanager
def beside(folder: Path, found: dict[str, Any]) -> Iterator[tuple[Controller, Client]]:
    """A controller, its peak of memory, and how long `/health` took meanwhile."""
    worker = {**TWO_SLOTS["worker"], "read_paths": [str(folder)]}
    settings = {
        "worker": worker,
        "retention": {"history_jobs": 10_000_000},
        "limits": {"streams": 5_100},  # those that never read, and some that do
    }
    with Controller(folder, settings) as controller, Client(home=controller.door) as client:
        figures.warm_up(client)
        door = urlsplit(controller.card["http"])
        prober = OtherProcess("bench.prober", RATE, "health", "127.0.0.1", door.port)
        yield controller, client
        asked = prober.stop()
        waits = [one["s"] * 1000 for one in asked]
        found["health_failed"] = sum(one["failed"] for one in asked)
        found["controller_peak_mb"] = controller.peak_mb()
        found["health_calls"] = len(waits)
        found["health_p50_ms"] = figures.quantile(waits, 0.5)
        found["health_p99_ms"] = figures.quantile(waits, 0.99)
        found["health_longest_ms"] = max(waits)


def printing() -> Callable[[Any], None]:
    def say(number: Any) -> None:
        print("this is what job", number, "has to say")

    return say


def kept_outputs(folder: Path, sizes: Extremes) -> dict[str, Any]:
    """How fast jobs that print are done while there is little output, and while there is much."""
    found: dict[str, Any] = {}

    def done_per_s(client: Client, count: int) -> float:
        begun = time.perf_counter()
        assert sum(1 for _ in client.map(printing(), range(count))) == count
        return count / (time.perf_counter() - begun)

    with beside(folder, found) as (_, client):
        done_per_s(client, sizes.sample)
        found["printing_before_per_s"] = done_per_s(client, sizes.sample)
        done_per_s(client, sizes.outputs)
        found["printing_after_per_s"] = done_per_s(client, sizes.sample)
        found["printing_ratio"] = found["printing_after_per_s"] / found["printing_before_per_s"]
        begun = time.perf_counter()
        client.jobs(limit=1000)
        found["list_1000_s"] = time.perf_counter() - begun
    return found


def stalled_readers(folder: Path, sizes: Extremes) -> dict[str, Any]:
    """They connect within seconds, to a job that wrote 20 MB and goes on, and take nothing."""

    def tell(path: str) -> None:
        import os
        import time

        for number in range(200_000):
            print(f"{number:06d} {'x' * 92}")
        print("told", flush=True)
        while not os.path.exists(path):
            print(f"{time.time()} {'y' * 80}", flush=True)
            time.sleep(0.05)

    found: dict[str, Any] = {}
    ending = folder / "ending"
    with beside(folder, found) as (controller, client):
        handle = client.submit(tell, (str(ending),), priority=100)
        for line in handle.logs():
            if "told" in line:
                break
        port, address = urlsplit(controller.card["http"]).port, controller.card["grpc"]
        begun = time.perf_counter()
        readers = OtherProcess(
            "bench.stalled", port, address, handle.id, sizes.readers, token=controller.token
        )
        found["connected_s"] = time.perf_counter() - begun
        time.sleep(sizes.probe_s)
        found["reader_kb"] = (controller.peak_mb() - 100) * 1000 / sizes.readers
        ending.touch()
        handle.result()
        readers.stop()
    return found


def many_artifacts(folder: Path, sizes: Extremes) -> dict[str, Any]:
    """One job stores them; then it is asked for in every way, again and again."""

    def leave(count: int) -> None:
        import os
        from pathlib import Path

        into = Path(os.environ["CORRAL_OUTPUT_DIR"])
        for number in range(count):
            (into / f"{number:06d}.txt").write_text(f"{number}")

    found: dict[str, Any] = {}
    with beside(folder, found) as (controller, client):
        begun = time.perf_counter()
        handle = client.submit(leave, (sizes.artifacts,), priority=100)
        handle.result()
        found["stored_s"] = time.perf_counter() - begun
        calls: dict[str, list[float]] = {}

        def timed(name: str, call: Callable[[], Any]) -> None:
            begun = time.perf_counter()
            call()
            calls.setdefault(name, []).append((time.perf_counter() - begun) * 1000)

        until = time.perf_counter() + sizes.probe_s
        while time.perf_counter() < until:
            timed("status", handle.status)
            timed("list", lambda: client.jobs(limit=100))
            timed("why", handle.why)
            timed("artifacts", handle.artifacts)
            timed("watch", lambda: figures.wait_for(_watched(controller.door, handle.id)))
        assert len(handle.artifacts()) == sizes.artifacts
        for name, waits in calls.items():
            found[f"{name}_p50_ms"] = figures.quantile(waits, 0.5)
    return found


async def _watched(door: Path, job: str) -> int:
    async with AsyncClient(home=door) as client:
        return sum([len(messages) async for messages in client._connection.watch(job_id=job)])


def cancelled_batch(folder: Path, sizes: Extremes) -> dict[str, Any]:
    """Everything waits; the newest are cancelled one by one, then all that is left at once."""
    found: dict[str, Any] = {}
    with beside(folder, found) as (controller, client), held_slots(client, folder):
        begun = time.perf_counter()
        newest = figures.wait_for(_fill(controller.door, sizes.cancelled))
        found["fill_s"] = time.perf_counter() - begun
        waits = []
        for job in newest:
            begun = time.perf_counter()
            client.job(job).cancel()
            waits.append((time.perf_counter() - begun) * 1000)
        found["cancel_newest_ms"] = figures.quantile(waits, 0.5)
        begun = time.perf_counter()
        reply = figures.wait_for(_cancel(controller.door))
        found["cancel_batch_s"] = time.perf_counter() - begun
        found["not_cancelled"] = sizes.cancelled - len(newest) - reply
        found["still_queued"] = client.health().queued
        time.sleep(1.0)
    return found


async def _fill(door: Path, count: int) -> list[str]:
    async with AsyncClient(home=door) as client:
        last: list[str] = []
        for first in range(0, count, 50_000):
            items = range(first, min(count, first + 50_000))
            accepted = await client.submit_map(
                figures.no_op(), items, batch="million", priority=-100
            )
            last = [one.id for one in accepted][-100:]
        return last[::-1]


async def _cancel(door: Path) -> int:
    async with AsyncClient(home=door) as client:
        request = pb.BatchRequest(batch="million")
        reply = await client._connection.call("CancelBatch", request, again=False)
        return int(reply.cancelled)


LOADS = {
    "100,000 kept outputs": kept_outputs,
    "5,000 stalled readers": stalled_readers,
    "20,000 artifacts": many_artifacts,
    "1 M cancelled": cancelled_batch,
}
BARS = (
    Figure("health_p99_ms", "/health, p99", "ms", at_most=HEALTH_MS),
    Figure("health_failed", "/health, without an answer", "", at_most=0),
    Figure("health_p50_ms", "/health, p50", "ms"),
    Figure("health_longest_ms", "/health, longest", "ms"),
    Figure("controller_peak_mb", "controller memory, peak", "MB", at_most=MEMORY_MB),
    Figure("printing_before_per_s", "jobs that print, nothing kept", "/s"),
    Figure("printing_after_per_s", "jobs that print, all of it kept", "/s"),
    Figure("printing_ratio", "the second ÷ the first", "", at_least=FLAT),
    Figure("list_1000_s", "a list of 1,000 of them", "s"),
    Figure("connected_s", "until all readers were connected", "s"),
    Figure("reader_kb", "memory for each reader, about", "kB"),
    Figure("stored_s", "storing the artifacts", "s"),
    Figure("status_p50_ms", "status of that job, p50", "ms"),
    Figure("list_p50_ms", "a list with that job, p50", "ms"),
    Figure("why_p50_ms", "why of that job, p50", "ms"),
    Figure("artifacts_p50_ms", "all its artifacts, p50", "ms"),
    Figure("watch_p50_ms", "its whole life watched, p50", "ms"),
    Figure("fill_s", "filling the queue", "s"),
    Figure("cancel_newest_ms", "cancelling the newest, each", "ms"),
    Figure("cancel_batch_s", "cancelling the rest at once", "s"),
    Figure("not_cancelled", "jobs not cancelled", "", at_most=0),
)
