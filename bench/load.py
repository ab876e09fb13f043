"""`make bench-load`: what the controller needs, and how it answers others, while it is busy.

Three loads, each on a controller in a new home: 1 GB of output through one job, 1,000 watchers of
one job (and ten that never read), 100,000 queued jobs. Beside each, another client submits and asks
for states 20 times a second. Then what `bench.extremes` describes, and a start from 2 M records of
history, asked for its health while it proves them. Exits with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench import extremes, history
from bench.bars import Figure, judged, line
from bench.controllers import TWO_SLOTS, Controller, held_slots
from bench.extremes import Extremes
from bench.other_process import OtherProcess
from bench.run import DATA, ROOT, machine
from corral.sdk import figures
from corral.sdk.aio import AsyncClient
from corral.sdk.client import Client

RATE = 20.0
MEMORY_MB = 400.0
ANSWER_MS = 50.0
START_S, START_MB, HEALTH_MS = 3.0, 300.0, 100.0


class Sizes:
    def __init__(self, *, quick: bool) -> None:
        self.probe_s = 1.5 if quick else 60.0
        self.output_bytes = 10_000_000 if quick else 1_000_000_000
        self.watchers = 50 if quick else 1_000
        self.stalled = 2 if quick else 10
        self.queued = 1_000 if quick else 100_000
        self.history = 80_000 if quick else 2_000_000


@contextlib.contextmanager
def loaded(folder: Path, found: dict[str, Any]) -> Iterator[tuple[Controller, Client]]:
    """A controller under observation: its peak of memory, its processor time, the other's calls."""
    settings = {"worker": {**TWO_SLOTS["worker"], "read_paths": [str(folder)]}}
    with Controller(folder, settings) as controller, Client(home=controller.door) as client:
        figures.warm_up(client)
        address, token = controller.card["grpc"], controller.token
        prober = OtherProcess("bench.prober", RATE, "client", address, token=token)
        begun, before = time.perf_counter(), controller.cpu_s()
        yield controller, client
        seconds = time.perf_counter() - begun
        found["controller_cpu"] = (controller.cpu_s() - before) / seconds
        calls = prober.stop()
        found["controller_peak_mb"] = controller.peak_mb()
        found["load_after"] = os.getloadavg()[0]
        since = found.pop("load_since", 0.0)
        for call in ("submit", "status"):
            made = [one for one in calls if one["call"] == call]
            early = [one["s"] * 1000 for one in made if one["at"] - one["s"] < since]
            waits = [one["s"] * 1000 for one in made if one["at"] - one["s"] >= since]
            found[f"{call}_calls"] = len(waits)
            found[f"{call}_p50_ms"] = figures.quantile(waits, 0.5)
            found[f"{call}_p99_ms"] = figures.quantile(waits, 0.99)
            found[f"{call}_longest_ms"] = max(waits)
            if early:
                found[f"{call}_early_p99_ms"] = figures.quantile(early, 0.99)


def much_output(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Jobs that write as fast as they can, followed by a client that counts; one after the other
    until the other client has asked long enough."""

    def pour(total: int) -> None:
        import sys

        line = "x" * 999 + "\n"
        for _ in range(total // 1000):
            sys.stdout.write(line)

    found: dict[str, Any] = {}
    with loaded(folder, found) as (controller, _):
        begun = time.perf_counter()
        jobs, received = 0, 0
        while not jobs or time.perf_counter() - begun < sizes.probe_s:
            received += figures.wait_for(_followed(controller.door, pour, sizes.output_bytes))
            jobs += 1
        found["mb_per_s"] = received / 1e6 / (time.perf_counter() - begun)
        found["jobs"] = jobs
        found["output_missing_bytes"] = jobs * sizes.output_bytes - received
    return found


async def _followed(door: Path, pour: Callable[[int], None], total: int) -> int:
    """Bytes of output that arrived at this client."""
    received = 0
    async with AsyncClient(home=door) as client:
        handle = await client.submit(pour, (total,), priority=100)
        async for messages in client._connection.watch(job_id=handle.id):
            received += sum(len(one.output.data) for one in messages if one.HasField("output"))
        await handle.result()
    return received


def many_watchers(folder: Path, sizes: Sizes) -> dict[str, Any]:
    lines = int(sizes.probe_s * RATE)

    def tick(path: str, lines: int, rate: float) -> None:
        import os
        import time

        while not os.path.exists(path):
            time.sleep(0.01)
        begun = time.monotonic()
        for number in range(lines):
            time.sleep(max(0.0, begun + number / rate - time.monotonic()))
            print(f"{number} {time.time():.6f} {'x' * 200}", flush=True)

    found: dict[str, Any] = {}
    go = folder / "go"
    with loaded(folder, found) as (controller, client):
        handle = client.submit(tick, (str(go), lines, RATE), priority=100)
        address, token = controller.card["grpc"], controller.token
        counts = (sizes.watchers, sizes.stalled, lines)
        watching = OtherProcess("bench.watchers", address, handle.id, *counts, token=token)
        found["load_since"] = time.time()
        go.touch()
        handle.result()
        found |= watching.stop()
        found["incomplete"] = found["watchers"] - found["complete"]
    return found


def long_queue(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Half of the time everything waits, half of it the worker works the queue off."""
    found: dict[str, Any] = {}
    with loaded(folder, found) as (controller, client):
        with held_slots(client, folder):
            begun = time.perf_counter()
            figures.wait_for(_fill(controller.door, sizes.queued))
            found["fill_s"] = time.perf_counter() - begun
            found["load_since"] = time.time()
            time.sleep(sizes.probe_s / 2)
        time.sleep(sizes.probe_s / 2)
        found["still_queued"] = client.health().queued
    return found


async def _fill(door: Path, count: int) -> None:
    async with AsyncClient(home=door) as client:
        await figures.submit_in_batches(client, count, priority=-100)


def long_history(folder: Path, sizes: Sizes) -> dict[str, Any]:
    return history.start(folder, sizes.history)


LOADS = {
    "1 GB of output": much_output,
    "1,000 watchers": many_watchers,
    "100,000 queued": long_queue,
    "2 M records of history": long_history,
}
BARS = (
    Figure("controller_peak_mb", "controller memory, peak", "MB", at_most=MEMORY_MB),
    Figure("submit_p99_ms", "another's submit, p99", "ms", at_most=ANSWER_MS),
    Figure("status_p99_ms", "another's status, p99", "ms", at_most=ANSWER_MS),
    Figure("submit_p50_ms", "another's submit, p50", "ms"),
    Figure("status_p50_ms", "another's status, p50", "ms"),
    Figure("controller_cpu", "processors the controller used"),
    Figure("mb_per_s", "output at the client", "MB/s"),
    Figure("output_missing_bytes", "bytes that did not arrive", "", at_most=0),
    Figure("incomplete", "watchers without every line in order", "", at_most=0),
    Figure("longest_lag_s", "longest from print to watcher", "s"),
    Figure("fill_s", "filling the queue", "s"),
    Figure("start_healthy_s", "start → healthy", "s", at_most=START_S),
    Figure("start_placed_s", "start → first placement", "s", at_most=START_S),
    Figure("start_peak_mb", "controller memory, peak", "MB", at_most=START_MB),
    Figure("health_p99_ms", "/health while the past is proven, p99", "ms", at_most=HEALTH_MS),
    Figure("proof_s", "until it was proven", "s"),
    Figure("proof_peak_mb", "memory of the proof, peak", "MB"),
    Figure("submit_early_p99_ms", "another's submit before that, p99", "ms"),
    Figure("status_early_p99_ms", "another's status before that, p99", "ms"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-load")
    parser.add_argument("--only", default="", help="only loads whose name contains this")
    parser.add_argument("--quick", action="store_true", help="small; proves that it runs")
    parser.add_argument("--to", type=Path, help="folder for load.json")
    asked = parser.parse_args()
    loads: list[tuple[str, Callable[[Path], dict[str, Any]], Sequence[Figure]]] = [
        *(
            (name, partial(load, sizes=Sizes(quick=asked.quick)), BARS)
            for name, load in LOADS.items()
        ),
        *(
            (name, partial(load, sizes=Extremes(quick=asked.quick)), extremes.BARS)
            for name, load in extremes.LOADS.items()
        ),
    ]
    measured: dict[str, dict[str, Any]] = {}
    missed = False
    for name, load, bars in loads:
        if asked.only not in name:
            continue
        folder = Path(tempfile.mkdtemp(prefix="corral-load-", dir=DATA))
        try:
            found = measured[name] = load(folder / "load")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(f"\n{name}")
        for bar in [judged(one, found[one.key], {}) for one in bars if one.key in found]:
            print(line(bar), flush=True)
            missed |= bar.met is False
    to = asked.to or (None if asked.quick or asked.only else ROOT / "docs" / "measurements")
    if to:
        to.mkdir(parents=True, exist_ok=True)
        document = {"machine": machine(), "loads": measured, "bars_met": not missed}
        (to / "load.json").write_text(json.dumps(document, indent=1) + "\n")
    return 1 if missed and not asked.quick else 0


if __name__ == "__main__":
    sys.exit(main())
