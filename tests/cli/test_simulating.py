"""`corral simulate`: without a controller, as text and as JSON, with clear mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Corral

GOOD = """
workers: [{name: slow}, {name: fast, speed: 3}]
models: [{name: flux, vram_gb: 20}, {name: sdxl, vram_gb: 20}]
jobs:
  - {count: 30, seconds: [5, 30], models: {flux: 1, sdxl: 1}}
  - {count: 3, seconds: [5, 5], queue_class: interactive, over_s: 100}
seeds: 2
"""


@pytest.fixture
def described(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(GOOD)
    return path


def test_as_text(corral: Corral, described: Path) -> None:
    answer = corral("simulate", str(described))
    assert answer.code == 0, answer.err
    assert answer.out.startswith("33 jobs, 2 workers, 2 models; seeds 0 to 1\n")
    for words in ("makespan", "x lower bound", "corral, interactive", "round robin, batch"):
        assert words in answer.out
    assert corral("simulate", str(described)).out == answer.out


def test_as_json(corral: Corral, described: Path) -> None:
    found = corral("simulate", str(described), "--json", "--seed", "5", "--seeds", "3").json
    assert list(found["ways"]) == ["corral", "fifo", "round robin"]
    assert [(run["way"], run["seed"]) for run in found["runs"][:4]] == [
        ("corral", 5),
        ("fifo", 5),
        ("round robin", 5),
        ("corral", 6),
    ]
    assert len(found["runs"]) == 9
    for run in found["runs"]:
        assert run["makespan_s"] >= run["bound_s"] > 0
        assert run["waits"]["interactive"]["jobs"] == 3
        assert set(run["workers"]) == {"slow", "fast"}


def test_what_failed_for_good_is_shown(corral: Corral, described: Path) -> None:
    described.write_text(GOOD + "failures: {attempts: 0.7}\n")
    assert "failed for good" in corral("simulate", str(described)).out


def test_mistakes(corral: Corral, described: Path) -> None:
    described.write_text(GOOD.replace("flux: 1", "fluks: 1"))
    answer = corral("simulate", str(described))
    assert (answer.code, answer.out) == (1, "")
    assert "the model fluks is named, but `models` does not describe it." in answer.err
    told = json.loads(corral("simulate", str(described), "--json").err)
    assert told["error"]["code"] == "invalid_settings"
    assert "cannot be read" in corral("simulate", str(described) + ".none").err
