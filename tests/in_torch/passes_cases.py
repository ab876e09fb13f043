"""A second, larger pass (hires) and a second model (refiner) inside txt2img."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace
from PIL import Image as Images

from corral.core.images.pipeline import Hires, Img2Img, Refiner, Txt2Img, Upscale
from corral.runtime.pipeline.diffusers.backend import Diffusers
from corral.runtime.pipeline.images import pixel_sha256
from tests.in_torch import making
from tests.in_torch.telling import Tell
from tests.in_torch.warm import CASTLE, pixels, refused, render


def test_hires_is_redrawn_larger_with_exactly_its_steps(backend: Diffusers) -> None:
    tell = Tell()
    stage = Txt2Img(hires=Hires(factor=1.25, steps=3, denoise=0.7))
    first = render(backend, CASTLE, stage, tell=tell)
    assert first.images[0].size == (80, 80)
    assert tell.steps == ["step 1 of 2", "step 2 of 2"] + [
        f"step {n} of 3 (hires)" for n in (1, 2, 3)
    ]
    fractions = [fraction for fraction, _ in tell.told]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    again = render(backend, CASTLE, stage)
    others = [
        Hires(factor=1.25, steps=3, denoise=0.3),
        Hires(factor=1.25, steps=2, denoise=0.7),
        Hires(factor=1.25, steps=3, denoise=0.7, upscaler="Latent (nearest-exact)"),
        Hires(factor=1.25, steps=3, denoise=0.7, upscaler="lanczos"),
    ]
    found = [render(backend, CASTLE, Txt2Img(hires=one)) for one in others]
    assert pixel_sha256(first.images[0]) == pixel_sha256(again.images[0])
    assert len({pixel_sha256(one.images[0]) for one in (first, *found)}) == 5


def test_hires_by_an_image_is_what_the_stages_one_by_one_are(backend: Diffusers) -> None:
    record = replace(CASTLE, batch_size=2)
    hires = Hires(factor=1.25, steps=2, denoise=0.5, upscaler="bicubic")
    at_once = render(backend, record, Txt2Img(hires=hires)).images
    chain = render(backend, record).images
    for stage in (Upscale(1.25, "bicubic"), Img2Img(denoise=0.5, steps=4)):
        chain = render(backend, record, stage, tuple(chain)).images
    assert list(map(pixel_sha256, at_once)) == list(map(pixel_sha256, chain))
    kept = render(backend, CASTLE, Txt2Img(hires=replace(hires, denoise=0.0)))
    plain = render(backend).images[0].resize((80, 80), Images.Resampling.BICUBIC)
    assert pixel_sha256(kept.images[0]) == pixel_sha256(plain)


@pytest.mark.parametrize(
    ("sampler", "scheduler"), [("euler", "karras"), ("heun", "normal"), ("euler a", "normal")]
)
def test_a_refiner_goes_on_where_the_model_stopped(
    backend: Diffusers, models: Path, sampler: str, scheduler: str
) -> None:
    """The same model again as its own refiner: nothing may change."""
    shutil.copytree(models / "tiny", models / "twin", dirs_exist_ok=True)
    record = replace(CASTLE, sampler=sampler, scheduler=scheduler)
    tell = Tell()
    twin = render(backend, record, Txt2Img(refiner=Refiner("twin", 0.5)), tell=tell)
    other = render(backend, record, Txt2Img(refiner=Refiner("other", 0.5)))
    plain = render(backend, record)
    assert pixel_sha256(twin.images[0]) == pixel_sha256(plain.images[0])
    assert pixel_sha256(twin.images[0]) != pixel_sha256(other.images[0])
    assert twin.info["models"].keys() == {"tiny", "twin"}
    fractions = [fraction for fraction, _ in tell.told]
    assert fractions == sorted(fractions)


def test_a_refiner_without_a_step_is_not_loaded(backend: Diffusers) -> None:
    made = render(backend, CASTLE, Txt2Img(refiner=Refiner("other", 1.0)))
    assert pixel_sha256(made.images[0]) == pixels(backend)
    assert made.info["models"].keys() == {"tiny"}


def test_the_refiner_of_sdxl(models: Path) -> None:
    """It has one text encoder and is no model for txt2img. With hires on top: three passes."""
    making.make_xl(models / "xl")
    making.make_refiner(models / "xl-refiner")
    both = Diffusers(models=2)
    record = replace(CASTLE, model="xl", batch_size=2, sampler="dpm++ 2m")
    refiner = Refiner("xl-refiner", 0.5)
    first = render(both, record, Txt2Img(refiner=refiner))
    again = render(both, record, Txt2Img(refiner=refiner))
    assert list(map(pixel_sha256, first.images)) == list(map(pixel_sha256, again.images))
    found = {pixel_sha256(first.images[0]), pixel_sha256(first.images[1])}
    found.add(pixel_sha256(render(both, record).images[0]))
    assert len(found) == 3
    assert (first.loaded, again.loaded) == (True, False)
    larger = render(both, record, Txt2Img(refiner=refiner, hires=Hires(factor=1.25)))
    assert {image.size for image in larger.images} == {(80, 80)}
    failed = refused(
        both, replace(record, model="tiny"), Txt2Img(refiner=replace(refiner, model="gone"))
    )
    assert failed.code == "model_missing"
    both.close()
