"""`make bench-slots`: what an image job costs a worker's slot beside the backend's own time.

A batch of small sketches on a machine with two slots. Of each job the time that it held its slot,
as its agent saw it (taking the order, rendering, PNG, card, both stored by the controller, result),
less what the backend says it took. Exits with 1 where the bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.bars import MARKS, Figure, judged, line, told
from bench.controllers import Controller
from bench.report import rounded, table
from bench.run import DATA, ROOT, machine
from corral.sdk import figures
from corral.sdk.client import Client

JOBS, SLOTS = 500, 2
BARS = (
    Figure("overhead_p50_ms", "slot time beside the backend's own, p50", "ms", at_most=15.0),
    Figure("overhead_p95_ms", "slot time beside the backend's own, p95", "ms"),
    Figure("backend_p50_ms", "the backend's own time, p50", "ms"),
    Figure("share_mean_ms", "slots × time of the batch ÷ jobs, less backend", "ms"),
    Figure("images_per_s", "images", "/s"),
)


def plan(jobs: int) -> dict[str, Any]:
    return {
        "name": "slots",
        "seed": 42,
        "base": {"txt2img": {"model": "sketch", "steps": 20, "width": 64, "height": 64}},
        "prompts": [{"positive": "a castle on a hill in the snow"}],
        "batches": jobs,
        "stages": ["txt2img"],
    }


def measure(folder: Path, jobs: int) -> dict[str, Any]:
    settings = {"worker": {"cpus": SLOTS}}
    with (
        Controller(folder / "controller", settings) as controller,
        Client(home=controller.door) as client,
    ):
        client.batch(plan(20)).wait(timeout=60)  # runners start, what they import is read
        begun = time.perf_counter()
        batch = client.batch(plan(jobs))
        outcomes = dict(batch.results())
        wall = time.perf_counter() - begun
        held = {job.job_id: job.seconds for job in batch.jobs()}
    failed = [outcome for outcome in outcomes.values() if isinstance(outcome, Exception)]
    if failed or len(outcomes) != jobs:
        raise SystemExit(f"{len(failed)} of {jobs} failed: {failed[:1]}")
    backend = {
        job: sum(stage["seconds"] for stage in outcome["stages"])
        for job, outcome in outcomes.items()
    }
    beside = [1000 * (held[job] - own) for job, own in backend.items()]
    mean = 1000 * statistics.fmean(backend.values())
    return {
        "jobs": jobs,
        "overhead_p50_ms": statistics.median(beside),
        "overhead_p95_ms": figures.quantile(beside, 0.95),
        "backend_p50_ms": 1000 * statistics.median(backend.values()),
        "share_mean_ms": 1000 * SLOTS * wall / jobs - mean,
        "images_per_s": jobs / wall,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-slots")
    parser.add_argument("--quick", action="store_true", help="small; proves that it runs")
    parser.add_argument("--to", type=Path, help="folder for slots.json and slots.md")
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    folder = Path(tempfile.mkdtemp(prefix="corral-slots-", dir=DATA))
    try:
        found = measure(folder, 50 if asked.quick else JOBS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    bars = [judged(figure, found[figure.key], {}) for figure in BARS]
    for bar in bars:
        print(line(bar), flush=True)
    missed = any(bar.met is False for bar in bars)
    to = asked.to or (None if asked.quick else ROOT / "docs" / "measurements")
    if to:
        _write(to, found, load, met=not missed)
    return 1 if missed and not asked.quick else 0


def _write(to: Path, found: dict[str, Any], load: float, *, met: bool) -> None:
    about = machine()
    bars = [judged(figure, found[figure.key], {}) for figure in BARS]
    rows = [
        [bar.name, f"{told(bar.value)} {bar.unit}".strip(), bar.bar, MARKS[bar.met]] for bar in bars
    ]
    text = [
        "# What an image job costs its slot",
        "",
        f"Written by `make bench-slots`: {found['jobs']} sketches of 64 × 64 pixels in one batch, "
        f"on {SLOTS} slots of one machine. Controller, agent and runners share its cores.",
        "",
        f"- Machine: {about['cpu']}, {about['cores']} cores, {about['system']}, Python "
        f"{about['python']}; load average before: {load:.1f}",
        "",
        *table(["figure", "Corral", "bar", ""], rows),
        "",
    ]
    to.mkdir(parents=True, exist_ok=True)
    (to / "slots.md").write_text("\n".join(text))
    document = {"machine": about, "load_before": load, "figures": rounded(found), "bars_met": met}
    (to / "slots.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
