"""Large random pipelines on a real GPU: same pixels twice, a cancel, hires, a refiner, two models
in turn, a GPU that fails; seconds and VRAM.

It runs in the interpreter of the tests, which must have torch, transformers and diffusers. Without
pytest, and with hardly anything of Corral installed: `python -m tests.in_torch.on_gpu`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]


def test_a_large_model_on_the_gpu() -> None:
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.in_torch.on_gpu"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{found['device']}: {found['per_image_s']:.2f} s per image (first {found['first_s']:.2f}, "
        f"in fours {found['per_image_of_four_s']:.2f}), {found['vram_gb']:.2f} GB of VRAM, "
        f"cancel {found['cancel_s']:.3f} s, {found['pixel_sha256']}"
    )
    for name in ("xl", "hires", "refiner"):
        one = found[name]
        print(f"{name}: {one['per_image_s']:.2f} s per image, {one['vram_gb']:.2f} GB of VRAM")
    print(f"in turn: {found['in_turn']['held_gb']} GB held; {found['poisoned']['said']}")
    assert found["dtype"] == "float16"
