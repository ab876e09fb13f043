"""`make chaos` for half a minute, and that its faults follow from the seed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import power_disk
from tests.chaos.schedule import KINDS, schedule
from tests.network import machines, wires

WORKERS = ("w1", "w2", "w3")


def test_the_seed_alone_makes_the_schedule() -> None:
    assert schedule(1, 300, WORKERS) == schedule(1, 300, WORKERS)
    assert schedule(1, 300, WORKERS) != schedule(2, 300, WORKERS)
    longer, shorter = schedule(1, 300, WORKERS), schedule(1, 30, WORKERS)
    assert longer[: len(shorter)] == shorter
    assert {fault.kind for fault in shorter} == set(KINDS), "half a minute has one of each"


@pytest.mark.long
def test_half_a_minute() -> None:
    if why := wires.unavailable() or machines.no_clock() or power_disk.unavailable():
        pytest.skip(why)
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--seconds", "30"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in KINDS:
        assert kind in done.stdout
