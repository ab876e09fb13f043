"""docs/simulate.md: its example runs as it stands and prints what the page shows."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from corral.simulate.comparison import compare, summed
from corral.simulate.description import read
from tests.docs.pages import ROOT, blocks, text
from tests.live import CORRAL

PAGE = "docs/simulate.md"


def test_the_example_prints_what_the_page_shows(tmp_path: Path) -> None:
    described, command = blocks(PAGE)
    name = described.text.splitlines()[0].removeprefix("# ")
    (tmp_path / name).write_text(described.text, encoding="utf-8")
    program, *words = command.text.split()
    assert program == "corral"
    ran = subprocess.run(
        [CORRAL, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert command.output is not None
    assert ran.stdout.strip() == command.output.strip()


@pytest.mark.long
def test_the_table_of_the_committed_trace_is_what_it_gives() -> None:
    described = read(ROOT / "examples" / "simulate" / "mixed.yaml")
    for row in rows(described.seeds):
        assert row in text(PAGE)


def rows(seeds: int) -> list[str]:
    described = read(ROOT / "examples" / "simulate" / "mixed.yaml")
    return [
        f"| {way} | {one.makespan_s:,.0f} s | {one.ratio:.2f} | {one.ratio_worst:.2f} "
        f"| {one.loads:,.0f} | {one.waits['interactive'].p95_s:,.0f} s "
        f"| {one.waits['interactive'].p95_worst_s:,.0f} s |"
        for way, one in summed(compare(described, range(seeds))).items()
    ]
