"""VRAM by the table: weights, and the hungriest stage."""

from __future__ import annotations

from typing import Any

import pytest

from corral.core.images.pipeline import ADetailer, Hires, Lora, Record, Refiner, Txt2Img, Upscale
from corral.core.job import Needs
from corral.pipelines.needs import FAMILIES, family, vram_gb_of
from tests.pipelines.plans import built


def gb(**record: Any) -> float:
    return vram_gb_of(Record(positive="", **{"width": 1000, "height": 1000, **record}))


@pytest.mark.parametrize(
    ("record", "vram_gb"),
    [
        ({"model": "m"}, 6.2),
        ({"model": "SDXL.safetensors"}, 8.8),
        ({"model": "xl", "batch_size": 4}, 14.8),
        ({"model": "xl", "loras": (Lora("a"), Lora("b"))}, 9.2),
        ({"model": "m", "stages": (Txt2Img(refiner=Refiner("xl")),)}, 9.0),
        ({"model": "xl", "stages": (Txt2Img(hires=Hires(factor=2.0)),)}, 14.8),
        ({"model": "xl", "stages": (Txt2Img(), ADetailer())}, 9.3),
        ({"model": "xl", "stages": (Txt2Img(), Upscale(factor=2.0))}, 8.8),
        ({"model": "xl", "stages": (Txt2Img(), Upscale(factor=4.0, upscaler="ESRGAN"))}, 12.1),
        ({"stages": (Upscale(factor=2.0, upscaler="ESRGAN"),)}, 1.7),
        ({"stages": (Upscale(),)}, 0.0),
        ({"model": "m", "width": 512, "height": 512}, 4.6),
    ],
)
def test_by_hand(record: dict[str, Any], vram_gb: float) -> None:
    assert gb(**record) == vram_gb


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("sdxl_1.0", "sdxl"),
        ("juggernautXL_v9.safetensors [abc]", "sdxl"),
        ("v1-5-pruned-emaonly", "sd1"),
        ("v2-1_768-ema", "sd2"),
        ("flux1-dev-fp8", "flux, 8 bit"),
        ("flux1-dev-bnb-nf4-v2", "flux, 4 bit"),
        ("flux1-schnell", "flux"),
        ("sd3.5_medium", "sd3"),
        ("", "any other"),
        ("mine", "any other"),
    ],
)
def test_families(model: str, name: str) -> None:
    assert family(model).name == name


def test_the_table_answers_for_every_model() -> None:
    assert FAMILIES[-1].words == ("",)


def test_needs_name_the_models_and_a_gpu() -> None:
    base = {"txt2img": {"model": "sdxl", "refiner": {"model": "sdxl_refiner"}}}
    (needs,) = built(base=base).needs
    assert (needs.gpus, needs.models) == (1, ("sdxl", "sdxl_refiner"))
    assert 7 < needs.vram_gb < 8


def test_needs_follow_each_record() -> None:
    found = built(
        prompts=["a", {"positive": "b", "loras": [{"name": "x"}]}],
        variants={"axes": {"model": ["sd15", "sdxl"]}, "rng_seed": 0},
    )
    told = {
        (one.model, len(one.loras)): (needs.models, needs.vram_gb)
        for one, needs in zip(found.records, found.needs, strict=True)
    }
    assert {key: models for key, (models, _) in told.items()} == {
        (model, loras): (model,) for model in ("sd15", "sdxl") for loras in (0, 1)
    }
    assert told["sd15", 0][1] < told["sd15", 1][1] < told["sdxl", 0][1] < told["sdxl", 1][1]


def test_a_sketch_needs_nothing() -> None:
    assert built(backend="sketch").needs == (Needs(),)


def test_a_plan_may_know_better() -> None:
    own = {"vram_gb": 4, "labels": ["site=attic"], "worker": "desk", "memory_gb": 16, "cpus": 2}
    own["gpu"] = "RTX 4090"
    (needs,) = built(needs=own).needs
    assert needs == Needs(
        gpus=1,
        vram_gb=4.0,
        gpu="RTX 4090",
        cpus=2.0,
        memory_gb=16.0,
        labels=("site=attic",),
        worker="desk",
        models=("m",),
    )
    assert built(needs={"gpus": 0}).needs == (Needs(models=("m",)),)
