"""Any order becomes the one order; what cannot run is an error with a code."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import msgspec
import pytest

from corral import pipelines
from corral.core.errors import CorralError, InvalidPlan
from corral.core.images.pipeline import (
    STAGES,
    ADetailer,
    Hires,
    Img2Img,
    Refiner,
    Txt2Img,
    Upscale,
    stage_name,
)
from corral.pipelines.config import PlanConfig
from corral.pipelines.stages import chain
from tests.pipelines.plans import built

ALL: dict[str, dict[str, object]] = {"txt2img": {}, "img2img": {}, "adetailer": {}, "upscale": {}}


def names(config: Any, asked: Any = None, inputs: tuple[str, ...] = ()) -> list[str]:
    found = chain(msgspec.convert(config, PlanConfig), asked, inputs=inputs)
    return [stage_name(one) for one in found]


@pytest.mark.parametrize("asked", list(permutations(STAGES)))
def test_any_order_becomes_the_one(asked: tuple[str, ...]) -> None:
    assert names({}, asked) == ["txt2img", "img2img", "adetailer", "upscale"]


def test_left_out_it_is_what_there_are_settings_for() -> None:
    assert names({"upscale": {}, "txt2img": {}}) == ["txt2img", "upscale"]


def test_asked_for_it_is_that_alone() -> None:
    assert names(ALL, ["upscale", "txt2img", "upscale"]) == ["txt2img", "upscale"]


def test_disabled_stages_drop_out() -> None:
    config = {**ALL, "img2img": {"enabled": False}, "upscale": {"enabled": False}}
    assert names(config) == ["txt2img", "adetailer"]
    assert names(config, ["upscale", "txt2img"]) == ["txt2img"]


def test_a_chain_may_begin_later_with_images() -> None:
    assert names(ALL, ["upscale"], ("one.png",)) == ["upscale"]
    assert names(ALL, ["upscale", "adetailer"], ("one.png",)) == ["adetailer", "upscale"]
    assert names(ALL, ["img2img", "adetailer"], ("one.png",)) == ["img2img", "adetailer"]


@pytest.mark.parametrize(
    ("config", "asked", "inputs", "code"),
    [
        ({}, None, (), "empty_stage_plan"),
        (ALL, [], (), "empty_stage_plan"),
        ({"txt2img": {"enabled": False}}, None, (), "empty_stage_plan"),
        (ALL, ["adetailer"], (), "stage_without_image"),
        (ALL, ["upscale", "adetailer"], (), "stage_without_image"),
        ({**ALL, "txt2img": {"enabled": False}}, None, (), "stage_without_image"),
        (ALL, ["upscale"], (), "stage_without_image"),
        (ALL, ["txt2img"], ("one.png",), "invalid_plan"),
        ({"txt2img": {"refiner": {}}}, None, (), "invalid_plan"),
    ],
)
def test_what_cannot_run(config: Any, asked: Any, inputs: tuple[str, ...], code: str) -> None:
    with pytest.raises(CorralError) as caught:
        names(config, asked, inputs)
    assert caught.value.code == code
    assert caught.value.details["path"]


def test_settings_reach_their_stage() -> None:
    config = {
        "txt2img": {
            "refiner": {"model": "r", "switch_at": 0.7},
            "hires": {"factor": 1.5, "upscaler": "u", "steps": 5, "denoise": 0.2},
        },
        "img2img": {"denoise": 0.3, "steps": 7},
        "adetailer": {"detector": "d", "confidence": 0.6, "denoise": 0.1, "positive": "p"},
        "upscale": {"factor": 4, "upscaler": "u"},
    }
    assert chain(msgspec.convert(config, PlanConfig)) == (
        Txt2Img(Refiner("r", 0.7), Hires(1.5, "u", 5, 0.2)),
        Img2Img(0.3, 7),
        ADetailer("d", 0.6, 0.1, "p"),
        Upscale(4.0, "u"),
    )


def test_refiner_and_hires_can_be_disabled() -> None:
    config = {"txt2img": {"refiner": {"enabled": False}, "hires": {"enabled": False}}}
    assert chain(msgspec.convert(config, PlanConfig)) == (Txt2Img(),)


def test_an_upscale_alone_asks_for_no_model() -> None:
    base = {"txt2img": {"model": "m", "steps": 9}, "upscale": {"factor": 4}}
    found = built(base=base, stages=["upscale"], inputs=["one.png"], prompts=[""])
    (record,) = found.records
    assert (record.model, record.steps, record.inputs) == ("", 20, ("one.png",))
    assert found.needs[0].models == ()


def test_images_without_prompts_are_a_row_each() -> None:
    base = {"upscale": {"factor": 4}}
    plan = {"base": base, "inputs": ["one.png", "two.png"]}
    found = pipelines.build(pipelines.parse(plan))
    assert [one.inputs for one in found.records] == [("one.png",), ("two.png",)]
    rows = {"base": base, "prompts": [{"inputs": ["one.png", "two.png"]}]}
    (record,) = pipelines.build(pipelines.parse(rows)).records
    assert record.inputs == ("one.png", "two.png")
    many = {"base": base, "inputs": [f"{n}.png" for n in range(65)]}
    assert len(pipelines.build(pipelines.parse(many)).records) == 65
    with pytest.raises(InvalidPlan, match="at most 64 images"):
        pipelines.parse({**many, "prompts": ["a"]})


def test_rows_may_bring_images_of_their_own() -> None:
    rows = ["a", {"positive": "b", "inputs": ["two.png"]}]
    found = built(prompts=rows, stages=["img2img"], inputs=["one.png"])
    assert [one.inputs for one in found.records] == [("one.png",), ("two.png",)]
    with pytest.raises(InvalidPlan, match="img2img works on an image"):
        built(prompts=rows, stages=["img2img"])
