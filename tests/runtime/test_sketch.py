"""The backend that draws: the same everywhere, different where it should be, all stages."""

from __future__ import annotations

from math import ceil

import pytest
from msgspec.structs import replace
from PIL import Image as Images
from PIL.Image import Image

from corral import job
from corral.core.images.pipeline import (
    ADetailer,
    Hires,
    Img2Img,
    Lora,
    Record,
    Stage,
    Txt2Img,
    Upscale,
)
from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.images import from_bytes, pixel_sha256, to_png
from corral.runtime.pipeline.sketch import Sketch

PLAIN = Txt2Img()
CASTLE = Record(positive="a castle in the snow", width=64, height=64, seed=1)

PIXELS = {
    "txt2img": "3d5f6b4951fbebb7881cade1246e1a2a30bc0b0d14dd9dbee4667b9db4637db9",
    "img2img": "16f73dfe3476f965538038204e78bff32ebe2536464488e70022544cd45d2d3c",
    "adetailer": "2b6a6a75141ca4f41d8a84a68f85c6204f7685a4fbb9c3c3d6b96a242a3cfbc9",
    "upscale": "ccc394d9904a2513c67a040666acea842383f583d7b657de14476976e96b90d4",
}
"""Computed once; any machine must come to the same."""


class Tell:
    def __init__(self, cancel_after: int = 1 << 30) -> None:
        self.told: list[tuple[float, str]] = []
        self.asked = 0
        self._cancel_after = cancel_after

    def progress(self, fraction: float, message: str = "") -> None:
        self.told.append((fraction, message))

    def cancelled(self) -> bool:
        self.asked += 1
        return self.asked > self._cancel_after


def draw(record: Record = CASTLE, stage: Stage = PLAIN, *images: Image) -> Image:
    return Sketch().render(stage, record, images, Tell()).images[0]


def chain() -> dict[str, str]:
    image = draw()
    found = {"txt2img": pixel_sha256(image)}
    for name, stage in (
        ("img2img", Img2Img(denoise=0.5)),
        ("adetailer", ADetailer()),
        ("upscale", Upscale(factor=1.5)),
    ):
        image = draw(CASTLE, stage, image)
        found[name] = pixel_sha256(image)
    return found


def test_the_pixels_are_the_same_on_every_machine() -> None:
    assert chain() == PIXELS


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 2},
        {"positive": "a castle in the rain"},
        {"negative": "fog"},
        {"model": "other"},
        {"vae": "other"},
        {"sampler": "euler"},
        {"scheduler": "karras"},
        {"steps": 21},
        {"cfg_scale": 7.5},
        {"clip_skip": 2},
        {"loras": (Lora("detail", 0.5),)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_whatever_decides_a_pixel_is_seen(changed: dict[str, object]) -> None:
    one, other = draw(), draw(replace(CASTLE, **changed))
    assert _differing(one, other) > 64 * 64 // 20


def _differing(one: Image, other: Image) -> int:
    pairs = zip(one.convert("L").tobytes(), other.convert("L").tobytes(), strict=True)
    return sum(abs(a - b) > 8 for a, b in pairs)


def test_where_a_record_is_from_is_not_seen() -> None:
    moved = replace(CASTLE, pack="p", row=3, variant_index=2, batch_index=1, job_id="j", output="x")
    assert pixel_sha256(draw(moved)) == pixel_sha256(draw())


def test_it_draws_more_than_a_few_colours() -> None:
    assert len(draw().getcolors() or ()) > 30


def test_hires_is_a_larger_image() -> None:
    assert draw(CASTLE, Txt2Img(hires=Hires(factor=1.5))).size == (96, 96)


def test_img2img_keeps_what_it_is_told_to_keep() -> None:
    before = Images.new("RGB", (64, 64), (200, 100, 50))
    assert draw(CASTLE, Img2Img(denoise=0.0), before).tobytes() == before.tobytes()
    assert draw(CASTLE, Img2Img(denoise=1.0), before).tobytes() != before.tobytes()


def test_adetailer_changes_a_part() -> None:
    before = draw()
    changed = _differing(before, draw(CASTLE, ADetailer(denoise=1.0), before))
    assert 0 < changed <= (64 // 3) ** 2


@pytest.mark.parametrize(
    ("factor", "size"), [(1.0, (64, 64)), (2.0, (128, 128)), (2.5, (160, 160))]
)
def test_upscale_makes_it_as_much_larger(factor: float, size: tuple[int, int]) -> None:
    before = draw()
    after = draw(CASTLE, Upscale(factor=factor), before)
    assert after.size == size
    for x, y in ((0, 0), (31, 40), (63, 63)):
        assert after.getpixel((ceil(x * factor), ceil(y * factor))) == before.getpixel((x, y))


def test_steps_are_told_and_a_cancel_is_heard_between_them() -> None:
    tell = Tell()
    Sketch().render(Txt2Img(), CASTLE, (), tell)
    assert (1.0, "step 20 of 20") in tell.told
    fractions = [fraction for fraction, _ in tell.told]
    assert fractions == sorted(fractions)
    with pytest.raises(job.Cancelled):
        Sketch().render(Txt2Img(), CASTLE, (), Tell(cancel_after=5))


def test_model_loads_are_counted() -> None:
    sketch = Sketch()
    loaded = [
        sketch.render(Txt2Img(), replace(CASTLE, model=model), (), Tell()).loaded
        for model in ("a", "a", "b", "a")
    ]
    assert loaded == [True, False, True, True]


def test_a_small_card_is_played() -> None:
    sketch = Sketch(vram_gb=0.01)
    sketch.render(Txt2Img(), CASTLE, (), Tell())
    with pytest.raises(StageFailed) as refused:
        sketch.render(Txt2Img(), replace(CASTLE, width=128, height=128), (), Tell())
    assert refused.value.code == "out_of_memory"


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_a_png_gives_the_pixels_back(mode: str) -> None:
    image = draw().convert(mode)
    assert pixel_sha256(from_bytes(to_png(image, {"a": "ü"}))) == pixel_sha256(image)


def test_a_file_that_is_no_usual_image_is_not_opened() -> None:
    for data in (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b""):
        with pytest.raises(OSError, match="identify"):
            from_bytes(data)


def test_what_would_take_all_memory_is_refused() -> None:
    image = Images.new("RGB", (4096, 4096))
    with pytest.raises(StageFailed, match="pixels are more than") as refused:
        draw(CASTLE, Upscale(factor=8), image)
    assert refused.value.code == "bad_job"
