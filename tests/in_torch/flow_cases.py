"""Models trained by flow matching: Stable Diffusion 3 and Flux, both tiny."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from PIL import Image as Images

from corral.core.images.pipeline import Hires, Img2Img, Refiner, Txt2Img
from corral.runtime.pipeline.diffusers import schedulers
from corral.runtime.pipeline.diffusers.backend import Diffusers
from corral.runtime.pipeline.images import pixel_sha256
from tests.in_torch import making
from tests.in_torch.telling import Tell
from tests.in_torch.warm import CASTLE, refused, render

FLOW = replace(CASTLE, model="flow")
FLUX = replace(CASTLE, model="flux", negative="")


@pytest.fixture(scope="module")
def both(models: Path) -> Iterator[Diffusers]:
    making.make_flow(models / "flow")
    making.make_flux(models / "flux")
    found = Diffusers(models=2)
    yield found
    found.close()


def pixels(both: Diffusers, record: Any) -> str:
    return pixel_sha256(render(both, record).images[0])


@pytest.mark.parametrize("record", [FLOW, FLUX], ids=("sd3", "flux"))
def test_whatever_decides_a_pixel_is_seen(both: Diffusers, record: Any) -> None:
    others = ({"positive": "a tower"}, {"seed": 6}, {"steps": 3}, {"cfg_scale": 3.0})
    found = [pixels(both, replace(record, **changed)) for changed in ({}, *others)]
    assert len(set(found)) == len(found)
    assert pixels(both, record) == found[0]


@pytest.mark.parametrize("schedule", schedulers.FLOW_SCHEDULES)
def test_schedules(both: Diffusers, schedule: str) -> None:
    record = replace(FLOW, steps=3)
    own = pixels(both, replace(record, scheduler=schedule))
    assert (own == pixels(both, record)) is (schedule in ("normal", "simple"))


def test_heun(both: Diffusers) -> None:
    made = render(both, replace(FLOW, sampler="heun"))
    assert made.info["scheduler"] == "FlowMatchHeunDiscreteScheduler"


@pytest.mark.parametrize(
    ("record", "sampler", "scheduler"),
    [
        (FLOW, "dpm++ 2m", "normal"),
        (FLOW, "euler", "sgm uniform"),
        (FLOW, "heun", "karras"),
        (FLUX, "heun", ""),
    ],
)
def test_what_there_is_not_for_such_a_model_is_named(
    both: Diffusers, record: Any, sampler: str, scheduler: str
) -> None:
    failed = refused(both, replace(record, sampler=sampler, scheduler=scheduler))
    assert failed.code == "stage_missing"
    assert sampler in failed.message


@pytest.mark.parametrize("record", [FLOW, FLUX], ids=("sd3", "flux"))
def test_img2img_keeps_the_size(both: Diffusers, record: Any) -> None:
    """These pipelines else draw in the size that the model was trained for."""
    image = Images.linear_gradient("L").resize((96, 64)).convert("RGB")
    found = [
        render(both, record, Img2Img(denoise=denoise), (image,)).images[0]
        for denoise in (0.5, 1.0, 0.5)
    ]
    assert {one.size for one in found} == {(96, 64)}
    shown = list(map(pixel_sha256, found))
    assert shown[0] == shown[2] != shown[1]


@pytest.mark.parametrize("record", [FLOW, FLUX], ids=("sd3", "flux"))
def test_hires_and_refiner(both: Diffusers, record: Any) -> None:
    tell = Tell()
    stage = Txt2Img(hires=Hires(factor=1.25, steps=3, denoise=0.3))
    larger = render(both, record, stage, tell=tell)
    assert larger.images[0].size == (80, 80)
    assert tell.steps[2:] == [f"step {n} of 3 (hires)" for n in (1, 2, 3)]
    itself = render(both, record, Txt2Img(refiner=Refiner(record.model, 0.5)))
    assert pixel_sha256(itself.images[0]) == pixels(both, record)


def test_two_kinds_do_not_go_on_with_each_other(both: Diffusers) -> None:
    failed = refused(both, CASTLE, Txt2Img(refiner=Refiner("flow", 0.5)))
    assert failed.code == "bad_job"
    assert "flow" in failed.message


def test_what_flux_does_not_read_is_said(both: Diffusers) -> None:
    (warning,) = render(both, replace(FLUX, negative="blurry")).warnings
    assert "negative prompt" in warning
    assert render(both, replace(FLUX, positive="castle " * 40)).warnings == []
    (warning,) = render(both, replace(FLUX, positive="castle " * 80)).warnings
    assert "512" in warning
    assert refused(both, replace(FLUX, clip_skip=2)).code == "stage_missing"
