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
        ("workers: [", "is not valid YAML, line 1, column 11: "),
        ("- one\n- two", "must hold `workers:`, `jobs:`"),
        ("", "must hold `workers:`, `jobs:`"),
        (GOOD.replace("workers", "workrs"), "line 2, `workrs`: nothing is called so; did you mean"),
        (GOOD.replace("jobs: [{count: 3, ", "jobs: [{"), "line 4, `jobs`, entry 1: `count` is mi"),
        (
            GOOD.replace("count: 3", "count: many"),
            "line 4, `jobs`, entry 1, `count`: it needs a whole number; got 'many'. See",
        ),
        (GOOD.replace("count: 3", "count: 999999"), "`count`: it must be at most 200000; got 9"),
        (
            GOOD.replace("vram_gb: 8}]\nmodels", "speed: 0}]\nmodels"),
            "line 2, `workers`, entry 1, `speed`: it must be more than 0",
        ),
        (GOOD.replace("[1, 2]", "5"), "`seconds`: it needs a list; got 5."),
        (GOOD.replace("[1, 2]", "[5]"), "`seconds`: it needs a list of 2; got [5]."),
        (
            GOOD.replace("count: 3", "count: 3, queue_class: x"),
            "of interactive, batch; got 'x'",
        ),
        (GOOD.replace("name: one", "nam: one"), "line 2, `workers`, entry 1, `nam`: nothing"),
        (GOOD.replace("{flux: 1}", "{flux: a}"), "it needs a number"),
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
