"""`make bench-turns`: one benchmark on two checkouts in turns, and what became of each figure.

`ARGS='BEFORE decide --rounds 3'` runs `bench.decide` there and here, three times each, the order
swapped every round: a machine whose speed drifts slows both. Other options go to the benchmark.
Prints medians and how good each figure is beside the one before (1 is as good; more is
better), and exits with 1 where one is below 0.95.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.bars import CORRAL, told

HERE = Path(__file__).parent.parent
AS_GOOD = 0.95
MORE_IS_BETTER = ("_per_s", "queue_ratio")
LESS_IS_BETTER = ("_ms", "_s", "_mb", "_percent", "_lost", "backlog_ratio", "_cpu")
NO_FIGURE = ("load_before", "load_after", "took_s", "client_cpu_s", "_longest_ms")
"""Of the machine or of the measurement, as the worst of thousands of answers is."""

Found = dict[str, list[float]]
"""A value of each round, by figure."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-turns", description=__doc__)
    parser.add_argument("before", type=Path, help="a checkout in which `make setup` was run")
    parser.add_argument("benchmark", help="bench, decide, faults, load or slots")
    parser.add_argument("--rounds", type=int, default=3)
    asked, rest = parser.parse_known_args()
    trees = {"before": asked.before.resolve(), "now": HERE}
    found: dict[str, Found] = {side: {} for side in trees}
    for number in range(asked.rounds):
        for side in sorted(trees, reverse=number % 2 == 1):
            for figure, value in _run(trees[side], asked.benchmark, rest):
                found[side].setdefault(figure, []).append(value)
            print(f"round {number + 1} of {asked.rounds}: {side}", flush=True)
    lines, worse = compared(found["before"], found["now"])
    print("\n".join(lines))
    return 1 if worse else 0


def _run(tree: Path, benchmark: str, options: list[str]) -> Iterator[tuple[str, float]]:
    module, name = ("bench", "bench") if benchmark == "bench" else (f"bench.{benchmark}", benchmark)
    only_ours = ["--only", CORRAL, "--rounds", "1"] if benchmark == "bench" else []
    with tempfile.TemporaryDirectory() as folder:
        python = str(tree / ".venv/bin/python")
        command = [python, "-m", module, "--to", folder, *only_ours, *options]
        ran = subprocess.run(command, cwd=tree, capture_output=True, text=True)
        written = Path(folder) / f"{name}.json"
        if not written.exists():
            sys.exit(f"{' '.join(command)} in {tree} wrote no figures:\n{ran.stderr}")
        document = json.loads(written.read_text("utf-8"))
    yield from _figures(document.get("medians", {}).get(CORRAL) or document)


def _figures(document: Mapping[str, object], under: str = "") -> Iterator[tuple[str, float]]:
    for key, value in document.items():
        if isinstance(value, Mapping) and key != "rounds":
            yield from _figures(value, f"{under}{key}: ")
        elif isinstance(value, int | float) and not key.endswith(NO_FIGURE):
            yield f"{under}{key}", value


def compared(before: Found, now: Found) -> tuple[list[str], list[str]]:
    """A line for each figure that both have, and the names of those that became worse."""
    figures = [figure for figure in before if figure in now and _sign(figure)]
    wide = max(map(len, figures), default=0) + 4
    lines = [f"{'figure':<{wide}}{'before':>12}{'now':>12}  as good"]
    worse = []
    for figure in figures:
        old, new = (max(0.0, statistics.median(one[figure])) for one in (before, now))
        better, than = (new, old) if _sign(figure) > 0 else (old, new)
        good = better / than if than else 1.0
        if good < AS_GOOD:
            worse.append(figure)
        mark = "  WORSE" if good < AS_GOOD else ""
        lines.append(f"{figure:<{wide}}{told(old):>12}{told(new):>12}  {good:7.3f}{mark}")
    return lines, worse


def _sign(figure: str) -> int:
    """Whether more of it is better, less, or it says nothing of speed."""
    return 1 if figure.endswith(MORE_IS_BETTER) else -1 if figure.endswith(LESS_IS_BETTER) else 0


if __name__ == "__main__":
    sys.exit(main())
