"""`make bench-builder`: how fast a plan becomes records, from the parsed YAML to validated records
with their digests and needs. Exits with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from bench.bars import Figure, judged, line
from bench.decide import loop_ms
from bench.run import ROOT, machine
from corral.core.images.pipeline import digest_of
from corral.pipelines import Built, build, parse

AXES = {"model": ["sdxl_a", "sdxl_b"], "sampler": ["euler", "ddim"], "steps": [20, 30]}


def a_night(prompts: int) -> dict[str, Any]:
    """Everything that a plan may have: 96 records for each prompt."""
    return {
        "name": "night",
        "seed": 42,
        "base": {
            "txt2img": {
                "model": "sdxl_1.0",
                "width": 1024,
                "height": 1024,
                "loras": [{"name": "detail", "weight": 0.6}],
                "hires": {"factor": 1.5},
            },
            "adetailer": {"denoise": 0.3},
            "upscale": {"factor": 2, "upscaler": "4x-UltraSharp"},
        },
        "prompts": [
            {
                "positive": f"castle {n} in the [[weather]], {'tall towers, moss, ' * 10}",
                "negative": "blurry, low resolution, text, watermark",
            }
            for n in range(prompts)
        ],
        "matrix": {"slots": {"weather": ["rain", "snow"]}},
        "sweep": {"txt2img.cfg_scale": [5, 7.5, 10]},
        "variants": {"axes": AXES, "rng_seed": 1},
        "batches": 2,
    }


def all_different(prompts: int) -> dict[str, Any]:
    """One record for each prompt: nothing is shared but the settings."""
    plan = a_night(prompts)
    return {key: plan[key] for key in ("name", "seed", "base", "prompts")} | {
        "matrix": {"slots": {"weather": ["rain"]}}
    }


def timed(plan: dict[str, Any], repeats: int) -> tuple[float, Built]:
    """Records a second, the median of all rounds."""
    rates = []
    for _ in range(repeats):
        gc.collect()
        began = time.perf_counter()
        built = build(parse(plan))
        rates.append(len(built.records) / (time.perf_counter() - began))
    return statistics.median(rates), built


BARS = (
    Figure("night_per_s", "a night of variants", "records/s", at_least=20_000),
    Figure("night_records", "  records of it"),
    Figure("prompts_per_s", "one record a prompt", "records/s", at_least=20_000),
    Figure("prompts_records", "  records of it"),
    Figure("loop_ms", "this machine: 10 million additions in Python", "ms"),
)


def measure(*, quick: bool) -> dict[str, float]:
    repeats = 2 if quick else 7
    found: dict[str, float] = {}
    for name, plan in (
        ("night", a_night(5 if quick else 500)),
        ("prompts", all_different(500 if quick else 50_000)),
    ):
        found[f"{name}_per_s"], built = timed(plan, repeats)
        found[f"{name}_records"] = len(built.records)
        assert len(set(built.digests)) == len(built.records)
        assert built.digests[-1] == digest_of(built.records[-1])
    found["loop_ms"] = loop_ms()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-builder")
    parser.add_argument("--quick", action="store_true", help="small; proves that it runs")
    parser.add_argument("--to", type=Path, help="folder for builder.json")
    asked = parser.parse_args()
    found = measure(quick=asked.quick)
    bars = [judged(figure, found[figure.key], {}) for figure in BARS]
    for bar in bars:
        print(line(bar), flush=True)
    missed = any(bar.met is False for bar in bars)
    to = asked.to or (None if asked.quick else ROOT / "docs" / "measurements")
    if to:
        to.mkdir(parents=True, exist_ok=True)
        document = {"machine": machine(), "figures": found, "bars_met": not missed}
        (to / "builder.json").write_text(json.dumps(document, indent=1) + "\n")
    return 1 if missed and not asked.quick else 0


if __name__ == "__main__":
    sys.exit(main())
