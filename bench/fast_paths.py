"""`make bench-fast-paths`: the same figures with every fast path, without any, and without each.

Medians of rounds, the ways in turns within each round: what a figure loses without a path is what
that path is worth. Processor time says it too where others share the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from bench import decide
from bench.bars import told
from bench.controllers import TWO_SLOTS, Controller, held_slots
from bench.run import DATA, machine
from corral.scheduler.plan import decide as decide_fast
from corral.scheduler.plan import decide_plainly
from corral.sdk import figures
from corral.sdk.client import Client
from corral.settings import FAST_PATHS

WAYS = ("", "all", *sorted(FAST_PATHS))
"""What each is measured without."""
NAMES = {
    "end_to_end_per_s": ("end to end, jobs/s", 1),
    "end_to_end_cpu_ms": ("  its processor time, ms a job", -1),
    "latency_p50_ms": ("idle latency p50, ms", -1),
    "latency_cpu_ms": ("  its processor time, ms a call", -1),
    "submit_one_by_one_per_s": ("submit, one by one, /s", 1),
    "submit_cpu_ms": ("  its processor time, ms a call", -1),
    "decide_ms": ("a decision over many workers, ms", -1),
}
"""What the figures are called, and whether more is better."""


class Sizes:
    def __init__(self, *, quick: bool) -> None:
        self.jobs = 300 if quick else 10_000
        self.latencies = 50 if quick else 1_000
        self.one_by_one = 100 if quick else 1_000
        self.workers = 100 if quick else 500


@contextlib.contextmanager
def switched_off(without: str) -> Iterator[None]:
    """In this process: the paths of a client."""
    os.environ["CORRAL_WITHOUT"] = without
    try:
        yield
    finally:
        del os.environ["CORRAL_WITHOUT"]


class Spent:
    """Processor time of controller, agent, runners and this client."""

    def __init__(self, controller: Controller) -> None:
        self._tree = [*controller.tree(), psutil.Process()]
        self._before = self._seconds()

    def _seconds(self) -> float:
        times = [one.cpu_times() for one in self._tree]
        return float(sum(one.user + one.system for one in times))

    def since(self, count: int = 1) -> float:
        """Milliseconds for each of so many, since it was asked last."""
        before, self._before = self._before, self._seconds()
        return (self._before - before) / count * 1000


def measure(folder: Path, without: str, sizes: Sizes) -> dict[str, float]:
    settings = {"worker": {**TWO_SLOTS["worker"], "read_paths": [str(folder)]}}
    with (
        switched_off(without),
        Controller(folder, settings, without=without) as controller,
        Client(home=controller.door) as client,
    ):
        figures.warm_up(client)
        spent = Spent(controller)
        found = {"end_to_end_per_s": figures.end_to_end(client, sizes.jobs)}
        found["end_to_end_cpu_ms"] = spent.since(sizes.jobs)
        figures.latencies(client, 20)
        spent.since()
        waits = figures.latencies(client, sizes.latencies)
        found["latency_cpu_ms"] = spent.since(sizes.latencies)
        found["latency_p50_ms"] = figures.quantile(waits, 0.5) * 1000
        with held_slots(client, folder):
            spent.since()
            found["submit_one_by_one_per_s"] = figures.submit_one_by_one(client, sizes.one_by_one)
            found["submit_cpu_ms"] = spent.since(sizes.one_by_one)
    return found | {"decide_ms": _decision(without, sizes.workers)}


def _decision(without: str, count: int) -> float:
    known = decide.workers(count)
    world = decide.filled(decide.shapes(50), 2 * count, known)
    deciding = decide_plainly if without in ("all", "columns") else decide_fast
    took, _ = decide.timed(world, known, 3, deciding)
    return statistics.median(took)


def main() -> int:
    usage = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="make bench-fast-paths", description=usage)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one small round, to try it")
    parser.add_argument("--to", type=Path, help="folder for fast-paths.json")
    asked = parser.parse_args()
    sizes = Sizes(quick=asked.quick)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for number in range(1 if asked.quick else asked.rounds):
        for way in WAYS if number % 2 == 0 else WAYS[::-1]:
            folder = Path(tempfile.mkdtemp(prefix="corral-bench-", dir=DATA))
            try:
                found[way].append(measure(folder, way, sizes))
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            shown = ", ".join(f"{key} {told(value)}" for key, value in found[way][-1].items())
            print(f"round {number + 1}: without {way or 'nothing'}: {shown}", flush=True)
    medians = {
        way: {key: statistics.median(one[key] for one in found[way]) for key in NAMES}
        for way in WAYS
    }
    print(table(medians))
    if asked.to:
        document = {"machine": machine(), "medians": medians, "rounds": found}
        (asked.to / "fast-paths.json").write_text(json.dumps(document, indent=1))
    return 0


def table(medians: dict[str, dict[str, float]]) -> str:
    """One line a figure: with all of them, and without these, with how much worse that is."""
    lines = ["", f"{'':50}{'all on':>12}" + "".join(f"{'- ' + way:>22}" for way in WAYS[1:])]
    for key, (name, sign) in NAMES.items():
        best = medians[""][key]
        cells = []
        for way in WAYS[1:]:
            worse = (best / medians[way][key] if sign > 0 else medians[way][key] / best) - 1
            cells.append(f"{told(medians[way][key])} ({worse:+.0%})")
        lines.append(f"{name:50}{told(best):>12}" + "".join(f"{cell:>22}" for cell in cells))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
