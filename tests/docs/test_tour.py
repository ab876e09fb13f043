"""The README, followed to the letter as a newcomer would, prints what it shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOUR = Path(__file__).resolve().parent.parent.parent / "tools" / "tour.py"


def test_the_tour() -> None:
    ran = subprocess.run(
        [sys.executable, TOUR], capture_output=True, text=True, timeout=110, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "11 of 11 steps" in ran.stdout
