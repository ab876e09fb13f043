"""A mistake in the file is named, in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.core.errors import InvalidSettings
from corral.simulate.description import read

GOOD = """
workers: [{name: one, vram_gb: 8}]
models: [{name: flux, vram_gb: 8}]
jobs: [{count: 3, seconds: [1, 2], models: {flux: 1}}]
"""


def test_a_good_one(tmp_path: Path) -> None:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    described = read(path)
    assert described.seeds == 1
    assert described.models[0].load_s == 20


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("workers: [", "is not valid YAML"),
        ("- one\n- two", "must hold `workers`, `jobs`"),
        ("", "must hold `workers`, `jobs`"),
        (GOOD.replace("workers", "worker"), "unknown field `worker`"),
        (GOOD.replace("jobs: [{count: 3, ", "jobs: [{"), "missing required field `count`"),
        (GOOD.replace("count: 3", "count: many"), "`.jobs[0].count`"),
        (GOOD.replace("count: 3", "count: 999999"), "`.jobs[0].count`"),
        (GOOD.replace("vram_gb: 8}]\nmodels", "speed: 0}]\nmodels"), "`.workers[0].speed`"),
        (GOOD.replace("seconds: [1, 2]", "seconds: [3, 2]"), "[shortest, longest]; got [3.0, 2.0]"),
        (GOOD.replace("{flux: 1}", "{sdxl: 1}"), "the model sdxl is named"),
        (GOOD.replace("{name: one, vram_gb: 8}", "{name: one, vram_gb: 4}"), "no worker could"),
        (GOOD.replace("{name: one, vram_gb: 8}", "{name: one, models: []}"), "no worker could"),
        (GOOD.replace("[{name: one, vram_gb: 8}]", "[{name: a}, {name: a}]"), "the worker a"),
        (GOOD.replace("[{name: one, vram_gb: 8}]", "[]"), "at least one worker"),
        (GOOD + "failures: {outages: [{worker: two, at_s: 1, for_s: 1}]}", "the worker two"),
        (
            GOOD + "failures: {outages: [{worker: one, at_s: 1, for_s: 9}, "
            "{worker: one, at_s: 5, for_s: 9}]}",
            "two outages of the worker one overlap",
        ),
    ],
)
def test_mistakes(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(InvalidSettings) as caught:
        read(path)
    assert told in caught.value.message
    assert "bad.yaml" in caught.value.message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="cannot be read: No such file"):
        read(tmp_path / "none.yaml")
