"""`make bench-decide`: what one decision costs, from a fresh snapshot to a plan for every slot.

A world is filled as the controller fills it, with workers of which no two are alike and jobs that
wait in many shapes. Then a snapshot is taken and decided, again and again: nothing that a decision
computes is kept for the next one. Exits with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from bench.bars import Figure, judged, told
from bench.run import ROOT, machine
from corral.controller.world import PACES, World
from corral.core.job import Head, Needs, QueueClass, Shape, State
from corral.core.worker import GPU, Capabilities, Worker
from corral.scheduler.plan import Plan, Snapshot, decide

CARDS_GB = (8.0, 10.0, 11.0, 12.0, 16.0, 20.0, 24.0, 32.0, 40.0, 48.0, 80.0)
MODELS = tuple(f"model-{n}" for n in range(12))
CLASSES: tuple[Literal["", "high-memory", "low-latency", "cpu-only"], ...] = (
    *("",) * 7,
    "high-memory",
    "low-latency",
    "cpu-only",
)
SITES = tuple(f"site=s{n}" for n in range(8))
NOW = 1_000_000.0


def workers(count: int) -> list[Worker]:
    """No two alike: each has a size of its own. Most have one GPU, some none, some several unequal
    ones. Owners said what some of them are for. All take work ahead, as they do by default."""
    dice = random.Random(count)
    made = []
    for n in range(count):
        gpus = tuple(
            GPU(uuid=f"GPU-{n}-{card}", name="card", vram_gb=dice.choice(CARDS_GB))
            for card in range(dice.choice((0, 1, 1, 1, 1, 1, 1, 1, 1, 2)))
        )
        can = Capabilities(
            cpus=dice.randint(2, 8) + n / (count * 10),
            memory_gb=dice.choice((16, 32, 64, 128)) + n / count,
            gpus=gpus,
            labels=(dice.choice(SITES), f"rack={n}"),
            workloads=dice.choice((("python",), ("python", "pipeline"))),
            reserved_for=dice.choice(("",) * 19 + ("interactive",)),
            weight=dice.choice((1.0,) * 8 + (0.5, 2.0)),
            suits=dice.choice(CLASSES),
            models_present=tuple(dice.sample(MODELS, 3)),
        )
        made.append(
            Worker(
                id=f"w{n:06}",
                name=f"n{n}",
                engine="simulated",
                capabilities=can,
                models_loaded=dice.choice(((), (), (can.models_present[0],))),
            )
        )
    return made


def shapes(count: int) -> list[Shape]:
    """Mostly work for whole GPUs, some for shares of one, some for processors alone; one in ten
    wants a model."""
    dice = random.Random(count)
    found: dict[Shape, None] = {}
    while len(found) < count:
        kind = dice.choice(("whole", "whole", "whole", "share", "processors"))
        needs = Needs(
            gpus=int(kind == "whole"),
            gpu_tenths=dice.choice((3, 5)) if kind == "share" else 0,
            vram_gb=dice.choice((0.0, 8.0, 12.0, 20.0, 40.0)) if kind == "whole" else 0.0,
            cpus=dice.choice((2.0, 3.0, 4.0)),
            memory_gb=dice.choice((0.0, 4.0, 8.0, 12.0)),
            labels=dice.choice(((), (), (), (dice.choice(SITES),))),
            models=(dice.choice(MODELS),) if kind == "whole" and dice.random() < 1 / 6 else (),
        )
        queue_class = dice.choice((QueueClass.INTERACTIVE, QueueClass.BATCH, QueueClass.BATCH))
        shape = Shape(needs, queue_class=queue_class, priority=dice.choice((0, 0, 1)))
        found[shape] = None
    return list(found)


def filled(waiting: Sequence[Shape], queued: int, known: Sequence[Worker] = ()) -> World:
    """Through the door that committed facts come by; every shape takes its turn. Of each shape it
    is known how long it took on the workers that did it last."""
    dice = random.Random(queued)
    world = World()
    for seq in range(queued):
        shape = waiting[seq % len(waiting)]
        head = Head(f"j{seq}", shape, State.QUEUED, NOW - 1.0, seq + 1, seq + 1)
        world.apply(head)
    for shape in waiting:
        world.took(shape, 30.0)
        for worker in dice.sample(known, min(len(known), PACES)):
            world.took(shape, dice.uniform(20.0, 40.0), worker.id, NOW - dice.uniform(1, 3600))
    return world


def timed(
    world: World,
    known: Sequence[Worker],
    repeats: int,
    decide: Callable[[Snapshot], Plan] = decide,
) -> tuple[list[float], Plan]:
    """Milliseconds of each decision, snapshot included, and the plan, which is always the same."""
    took: list[float] = []
    plan = Plan()
    # As the controller does: what is there at its start is not walked by the collector again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    for _ in range(repeats + 1):
        began = time.perf_counter()
        kept = len(known) // 100
        plan = decide(world.snapshot(NOW, known, 60.0, keep_for_interactive=kept))
        took.append((time.perf_counter() - began) * 1000)
    return took[1:], plan


class Case:
    """A cluster and its queue."""

    def __init__(self, count: int, queued: int, kinds: int) -> None:
        self.workers = workers(count)
        self.world = filled(shapes(kinds), queued, self.workers)

    def measured(self, name: str, repeats: int) -> dict[str, Any]:
        took, plan = timed(self.world, self.workers, repeats)
        return {
            f"{name}_ms": statistics.median(took),
            f"{name}_placed": sum(not one.ahead for one in plan.placements),
            f"{name}_ahead": sum(one.ahead for one in plan.placements),
            f"{name}_rounds_ms": [round(one, 3) for one in took],
        }


BARS = (
    Figure("home_ms", "50 workers x 10,000 queued in 20 shapes", "ms", at_most=5.0),
    Figure("home_placed", "  free slots that it filled"),
    Figure("home_ahead", "  and sent ahead of busy ones"),
    Figure("large_ms", "10,000 workers x 1,000,000 queued in 100", "ms", at_most=250.0),
    Figure("large_placed", "  free slots that it filled"),
    Figure("large_ahead", "  and sent ahead of busy ones"),
    Figure("backlog_ratio", "100,000 queued / 1,000 queued", "", at_most=1.3),
    Figure("loop_ms", "this machine: 10 million additions in Python", "ms"),
)


def loop_ms() -> float:
    """How quick this machine is at such work now: compare figures of two days by it."""
    took = []
    for _ in range(3):
        began, total = time.perf_counter(), 0
        for number in range(10_000_000):
            total += number
        took.append((time.perf_counter() - began) * 1000)
    return min(took)


def measure(*, quick: bool) -> dict[str, Any]:
    scale = 20 if quick else 1
    repeats = 3 if quick else 15
    found: dict[str, Any] = {}
    found |= Case(50, 10_000 // scale, 20).measured("home", repeats)
    short, long = Case(50, 1_000, 20), Case(50, 100_000 // scale, 20)
    ratios = []
    for _ in range(repeats):
        before = statistics.median(timed(short.world, short.workers, 5)[0])
        ratios.append(statistics.median(timed(long.world, long.workers, 5)[0]) / before)
    found["backlog_ratio"] = statistics.median(ratios)
    found["loop_ms"] = loop_ms()
    found |= Case(10_000 // scale, 1_000_000 // scale, 100).measured("large", repeats)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-decide")
    parser.add_argument("--quick", action="store_true", help="small; proves that it runs")
    parser.add_argument("--to", type=Path, help="folder for decide.json")
    asked = parser.parse_args()
    found = measure(quick=asked.quick)
    missed = False
    for figure in BARS:
        bar = judged(figure, found[figure.key], {})
        mark = {True: "met", False: "MISSED", None: ""}[bar.met]
        value = f"{told(bar.value)} {bar.unit}".strip()
        print(f"  {bar.name:<42}  {value:<10}  {bar.bar:<7}  {mark}".rstrip(), flush=True)
        missed |= bar.met is False
    to = asked.to or (None if asked.quick else ROOT / "docs" / "measurements")
    if to:
        to.mkdir(parents=True, exist_ok=True)
        document = {"machine": machine(), "figures": found, "bars_met": not missed}
        (to / "decide.json").write_text(json.dumps(document, indent=1) + "\n")
    return 1 if missed and not asked.quick else 0


if __name__ == "__main__":
    sys.exit(main())
