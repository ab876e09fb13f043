"""Rows × config variants × variants × batches, each a closed record."""

from __future__ import annotations

from typing import Any

import pytest

from corral.core.errors import InvalidPlan, PresetNotFound, TooManyRecords
from corral.core.images.pipeline import (
    Hires,
    LearningStep,
    Lora,
    Record,
    Refiner,
    Txt2Img,
    Upscale,
    decode_record,
    digest_of,
    encode_record,
)
from corral.pipelines import build, parse
from tests.pipelines.plans import BASE, built

ISSUE: dict[str, Any] = {
    "name": "night-1",
    "seed": 42,
    "base": {
        "txt2img": {
            "model": "sdxl_1.0",
            "sampler": "euler",
            "scheduler": "karras",
            "steps": 20,
            "cfg_scale": 7,
            "width": 1024,
            "height": 1024,
        },
        "upscale": {"factor": 2, "upscaler": "lanczos"},
    },
    "prompts": [{"positive": "a castle, [[weather]]", "negative": "blurry"}],
    "matrix": {"mode": "fanout", "slots": {"weather": ["rain", "snow"]}},
    "sweep": {"txt2img.cfg_scale": [5, 7.5, 10]},
    "variants": {
        "axes": {"model": ["m1", "m2"], "steps": [10, 30]},
        "max_variants": 3,
        "rng_seed": 42,
        "seed_mode": "per_variant",
        "base_seed": 10,
    },
    "batches": 2,
    "stages": ["txt2img", "upscale"],
    "class": "batch",
}


def test_the_plan_of_the_issue() -> None:
    found = built(**ISSUE)
    weathers, scales = ("rain", "snow"), (5.0, 7.5, 10.0)
    shuffled = (("m2", 10), ("m1", 30), ("m2", 30))
    expected = [
        Record(
            positive=f"a castle, {weather}",
            negative="blurry",
            model=model,
            sampler="euler",
            scheduler="karras",
            steps=steps,
            cfg_scale=scale,
            width=1024,
            height=1024,
            seed=10 + v + b * 3,
            stages=(Txt2Img(), Upscale(factor=2.0, upscaler="lanczos")),
            row=r,
            config_index=c,
            variant_index=v,
            batch_index=b,
            variants=found.records[0].variants,
        )
        for r, weather in enumerate(weathers)
        for c, scale in enumerate(scales)
        for v, (model, steps) in enumerate(shuffled)
        for b in range(2)
    ]
    assert len(expected) == 36
    assert list(found.records) == expected
    assert found.warnings == ()


def test_a_record_has_all_that_a_plan_can_say() -> None:
    (found,) = built(
        base={
            "txt2img": {
                "model": "m",
                "vae": "v",
                "sampler": "s",
                "scheduler": "c",
                "steps": 9,
                "cfg_scale": 3,
                "width": 640,
                "height": 768,
                "clip_skip": 2,
                "batch_size": 4,
                "seed": 5,
                "loras": [{"name": "a", "weight": 0.5}, {"name": "b"}],
                "refiner": {"model": "r"},
                "hires": {"factor": 1.5, "denoise": 0.3},
            }
        },
        prompts=[
            {
                "positive": "x <lora:c:0.25>, y",
                "negative": "n",
                "loras": [{"name": "b", "weight": 0.75}],
            }
        ],
        backend="webui",
        output="{index}_{job}",
        learning={"enabled": True, "plan": "p", "step": 3},
    ).records
    assert found == Record(
        positive="x, y",
        negative="n",
        model="m",
        vae="v",
        sampler="s",
        scheduler="c",
        steps=9,
        cfg_scale=3.0,
        width=640,
        height=768,
        clip_skip=2,
        batch_size=4,
        seed=5,
        loras=(Lora("a", 0.5), Lora("b", 0.75), Lora("c", 0.25)),
        stages=(Txt2Img(refiner=Refiner("r"), hires=Hires(factor=1.5, denoise=0.3)),),
        backend="webui",
        output="{index}_{job}",
        learning=LearningStep(enabled=True, plan="p", step=3),
    )


def test_no_server_chooses_a_sampler() -> None:
    (found,) = built().records
    assert (found.sampler, found.scheduler) == ("euler", "normal")


def test_a_seed_that_is_given_holds_and_copies_go_on_behind_it() -> None:
    base = {"txt2img": {"model": "m", "batch_size": 4, "seed": 100}}
    prompts = ["a", {"positive": "b", "seed": 7}, {"positive": "c", "seed": -1}]
    found = built(base=base, prompts=prompts, batches=3).records
    assert [one.seed for one in found] == [100, 104, 108, 7, 11, 15, 100, 104, 108]


@pytest.mark.parametrize("left_out", [{}, {"seed": -1}, {"seed": None}])
def test_a_seed_that_is_not_is_drawn_from_the_batch(left_out: dict[str, object]) -> None:
    base = {"txt2img": {"model": "m", "batch_size": 4, **left_out}}
    found = [one.seed for one in built(base=base, batches=100, call_seed=1).records]
    assert found == [one.seed for one in built(base=base, batches=100, call_seed=1).records]
    assert found != [one.seed for one in built(base=base, batches=100, call_seed=2).records]
    images = {seed + n for seed in found for n in range(4)}
    assert len(images) == 400
    assert min(images) >= 0
    assert max(images) < 2**32


def test_the_seed_of_the_plan_goes_before_that_of_the_call() -> None:
    one, other = (
        built(**{**ISSUE, "variants": None}, call_seed=1),
        built(**{**ISSUE, "variants": None}, call_seed=2),
    )
    assert one.records == other.records
    assert one.seed == 42


def test_copies_that_would_share_images_are_told() -> None:
    base = {"txt2img": {"model": "m", "batch_size": 2}}
    found = built(base=base, batches=2, variants={"seed_mode": "fixed", "base_seed": 1})
    assert [one.seed for one in found.records] == [1, 2]
    assert "some images will come twice" in found.warnings[0]


def test_sweeps_combine_in_order_and_null_keeps_the_base() -> None:
    found = built(
        base={"txt2img": {"model": "m", "steps": 8}, "upscale": {"factor": 2}},
        sweep={"txt2img.steps": [None, 12], "upscale.factor": [3, 4]},
    ).records
    assert [(one.config_index, one.steps, one.stages[1]) for one in found] == [
        (0, 8, Upscale(factor=3.0)),
        (1, 8, Upscale(factor=4.0)),
        (2, 12, Upscale(factor=3.0)),
        (3, 12, Upscale(factor=4.0)),
    ]


def test_a_sweep_reaches_what_is_nested_and_whole_stages() -> None:
    found = built(
        base={"txt2img": {"model": "m"}, "upscale": {}},
        sweep={"txt2img.hires.factor": [1.5], "upscale.enabled": [True, False]},
    ).records
    assert [one.stages for one in found] == [
        (Txt2Img(hires=Hires(factor=1.5)), Upscale()),
        (Txt2Img(hires=Hires(factor=1.5)),),
    ]


def test_a_sweep_and_an_axis_do_not_hide_each_other() -> None:
    with pytest.raises(InvalidPlan, match=r"`variants.axes.steps` sets it too"):
        built(sweep={"txt2img.steps": [1]}, variants={"axes": {"steps": [2]}})


def test_a_preset_stands_for_the_base() -> None:
    presets = {"fast": {"txt2img": {"model": "turbo", "steps": 4}}}
    found = built(
        preset="fast", presets=presets, overrides={"txt2img": {"steps": 6, "model": None}}
    ).records
    assert [(one.model, one.steps) for one in found] == [("turbo", 6)]
    with pytest.raises(PresetNotFound, match="Did you mean `fast`") as caught:
        built(preset="fats", presets=presets)
    assert caught.value.details["near"] == ["fast"]
    with pytest.raises(InvalidPlan, match=r"`preset bad.txt2img.modle`: nothing is called so"):
        built(preset="bad", presets={"bad": {"txt2img": {"modle": "x"}}})


def test_a_switched_off_override_is_told() -> None:
    found = built(overrides={"txt2img": {"apply": False, "steps": 3}})
    assert found.records[0].steps == 20
    assert found.warnings == ("`overrides.txt2img` is switched off: the base stays as it is.",)


def test_a_model_is_never_left_to_the_worker() -> None:
    with pytest.raises(InvalidPlan, match="no model is named"):
        built(base={"txt2img": {}})
    assert built(base={"txt2img": {}}, backend="sketch").records[0].backend == "sketch"
    assert built(base={"txt2img": {"model": "sketch"}}).records[0].backend == "sketch"
    (found,) = built(base={"txt2img": {}}, variants={"axes": {"model": ["m9"]}}).records
    assert found.model == "m9"


def test_digests_are_those_of_the_records() -> None:
    for found in (built(**ISSUE), built(prompts=[{"positive": "a", "loras": [{"name": "x"}]}])):
        assert list(found.digests) == [digest_of(one) for one in found.records]
        again = [decode_record(encode_record(one)) for one in found.records]
        assert list(found.digests) == [digest_of(one) for one in again]
        assert len(set(found.digests)) == len(found.records)


def test_a_default_that_is_written_out_changes_no_digest() -> None:
    short = {"txt2img": {"model": "m"}, "upscale": {}}
    long = {
        "txt2img": {"model": "m", "cfg_scale": 7, "steps": 20, "sampler": "euler", "clip_skip": 1},
        "upscale": {"factor": 2.0, "upscaler": "lan" + "czos"},
    }
    bare, told = {"name": "x"}, {"name": "x", "weight": 1.0}
    rows = [[{"positive": "a", "loras": [lora]}] for lora in (bare, told)]
    assert built(prompts=rows[0]).digests == built(prompts=rows[1]).digests
    assert built(base=short).digests == built(base=long, output="{job}-{index:03}").digests


def test_too_many_are_counted_and_not_built() -> None:
    plan = parse({"base": BASE, "prompts": ["a"] * 11, "batches": 10})
    with pytest.raises(TooManyRecords, match=r"110 records \(.*: 11 × 1 × 1 × 10\)"):
        build(plan, most_records=109)
    assert len(build(plan, most_records=110).records) == 110
    with pytest.raises(TooManyRecords, match="larger than 1,000 bytes"):
        build(plan, most_bytes=1000)


def test_what_a_worker_would_refuse_is_refused_here() -> None:
    rows = [{"positive": " ".join(f"<lora:l{n}>" for n in range(65))}]
    with pytest.raises(InvalidPlan, match="row 0, variant 0 cannot be rendered"):
        built(prompts=rows)
    with pytest.raises(InvalidPlan, match=r"`prompts\[0\]`: <lora:x:much> needs a weight"):
        built(prompts=["a <lora:x:much>"])
    with pytest.raises(InvalidPlan, match="not of the form"):
        built(prompts=["a <lora:x:1:2>"])


@pytest.mark.parametrize(
    "base",
    [
        {"txt2img": {"width": 8192, "height": 8192}, "upscale": {"factor": 2.01}},
        {"txt2img": {"width": 8192, "height": 4096, "hires": {"factor": 3}}},
        {"txt2img": {"width": 8192, "height": 8192, "batch_size": 64}},
        {"txt2img": {"model": "\x1b[2J"}},
    ],
)
def test_what_no_worker_can_render_is_refused(base: dict[str, dict[str, object]]) -> None:
    base["txt2img"].setdefault("model", "m")
    with pytest.raises(InvalidPlan, match=r"pixels; at most|cannot be printed"):
        built(base=base)


def test_what_is_large_and_possible_is_built() -> None:
    base = {"txt2img": {"model": "m", "width": 2048, "height": 2048, "hires": {"factor": 2}}}
    assert built(base={**base, "upscale": {"factor": 4}}).records
