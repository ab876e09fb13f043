"""The benchmarks run and print what they promise; how fast they are is not a test's business."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import bars, builder, extremes, faults, report, turns
from bench import decide as decisions
from bench.peers import PEERS
from corral.settings import FAST_PATHS

ROOT = Path(__file__).parent.parent.parent
HANGS_S = 900
"""None takes as long, however busy the machine is."""
pytestmark = [pytest.mark.long, pytest.mark.timeout(HANGS_S + 60)]


def test_a_small_round_measures_every_figure(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "--quick", "--to", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "bench.json").read_text())
    measured = document["medians"][bars.CORRAL]
    assert {figure.key for figure in bars.FIGURES} <= set(measured)
    assert measured["controller_killed_lost"] == 0
    assert "| kill -9 of a runner" in (tmp_path / "bench.md").read_text()
    assert "| kill -9 of a runner" not in done.stdout
    assert "kill -9 of a runner" in done.stdout


def test_loads(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.load", "--quick", "--to", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S, check=False
    )
    assert done.returncode == 0, done.stderr
    loads = json.loads((tmp_path / "load.json").read_text())["loads"]
    assert loads["1 GB of output"]["output_missing_bytes"] == 0
    assert loads["1,000 watchers"]["incomplete"] == 0
    assert loads["1,000 watchers"]["stalled"] == 2
    for name in ("1 GB of output", "1,000 watchers", "100,000 queued"):
        assert loads[name]["submit_calls"] > 0
    for name in extremes.LOADS:
        assert loads[name]["health_calls"] > 0
        assert loads[name]["health_failed"] == 0
    assert loads["1 M cancelled"]["not_cancelled"] == 0


def test_decisions(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.decide", "--quick", "--to", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "decide.json").read_text())
    assert {figure.key for figure in decisions.BARS} <= set(document["figures"])
    assert document["figures"]["large_placed"] > document["figures"]["home_placed"] > 0
    assert document["figures"]["home_ahead"] > 0
    assert "100,000 queued / 1,000 queued" in done.stdout


def test_builder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.builder", "--quick", "--to", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "builder.json").read_text())
    assert {figure.key for figure in builder.BARS} <= set(document["figures"])
    assert document["figures"]["night_records"] == 5 * 96
    assert "a night of variants" in done.stdout


def test_faults(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.faults", "--quick", "--to", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "faults.json").read_text())
    assert {figure.key for figure in faults.BARS} <= set(document["figures"])
    assert document["figures"]["idle_agents"] == 10
    assert "| agent silent" in (tmp_path / "faults.md").read_text()


def test_bars() -> None:
    celery, ray = {"end_to_end_per_s": 300.0, "latency_p50_ms": 4.0}, {"end_to_end_per_s": 2000.0}
    ours = {"end_to_end_per_s": 4500.0, "latency_p50_ms": 2.4, "controller_killed_lost": 0}
    found = bars.judge({bars.CORRAL: ours, bars.CELERY: celery, bars.RAY: ray})
    assert {one.name: one.met for one in found} == {
        "end to end": True,
        "end to end beside Celery": True,
        "end to end beside Ray": False,
        "idle latency, p50": True,
        "idle latency beside Celery": False,
        "kill -9 of the controller, lost of 1,000": True,
    }


def test_a_peer_that_was_not_measured_makes_no_bar() -> None:
    found = bars.judge({bars.CORRAL: {"end_to_end_per_s": 4500.0}})
    assert [one.met for one in found] == [True, None, None]


def test_a_refused_peer_stands_in_the_table() -> None:
    document = {"bars": [], "medians": {}, "durable": {}, "refused": {"Ray": "no wheel"}}
    assert "not measured: no wheel" in report.terminal(document)


def test_peers_name_programs_that_exist() -> None:
    assert len({peer.name for peer in PEERS}) == len(PEERS)
    for peer in PEERS:
        assert (ROOT / "bench" / "peers" / f"{peer.program}.py").exists(), peer.name
    assert {bars.CELERY, bars.RAY} <= {peer.name for peer in PEERS if peer.always}


def test_fast_paths(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.fast_paths", "--quick", "--to", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=HANGS_S, check=False
    )
    assert done.returncode == 0, done.stderr
    medians = json.loads((tmp_path / "fast-paths.json").read_text())["medians"]
    assert set(medians) == {"", "all", *FAST_PATHS}
    assert all(value > 0 for figures in medians.values() for value in figures.values())
    assert "- early_starts" in done.stdout


def test_two_checkouts_in_turns() -> None:
    command = [sys.executable, "-m", "bench.turns", str(ROOT), "decide", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    assert done.stdout.splitlines()[:2] == ["round 1 of 1: before", "round 1 of 1: now"], (
        done.stderr
    )
    assert "figures: home_ms" in done.stdout
    assert "home_placed" not in done.stdout


def test_what_became_worse_is_named() -> None:
    before = {"jobs_per_s": [100.0, 90.0, 110.0], "p50_ms": [2.0], "idle_s": [0.0]}
    now = {"jobs_per_s": [120.0, 99.0, 101.0], "p50_ms": [2.5], "idle_s": [0.0], "new_ms": [1.0]}
    before["one_lost"], now["one_lost"] = [0.0], [1.0]
    lines, worse = turns.compared(before, now)
    assert worse == ["p50_ms", "one_lost"]
    assert len(lines) == 5
