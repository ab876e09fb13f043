"""How much work a record is, beside others."""

from __future__ import annotations

from typing import Any

import pytest

from corral.core.images.pipeline import ADetailer, Hires, Img2Img, Record, Txt2Img, Upscale
from corral.pipelines.needs import effort

BASE: dict[str, Any] = {"width": 1000, "height": 1000, "steps": 20}


@pytest.mark.parametrize(
    ("changes", "times"),
    [
        ({"steps": 40}, 2),
        ({"width": 2000}, 2),
        ({"batch_size": 4}, 4),
        ({"stages": (Txt2Img(hires=Hires(factor=2, denoise=0.5)),)}, 1 + 4 * 0.5),
        ({"stages": (Txt2Img(hires=Hires(factor=2, denoise=0.5, steps=10)),)}, 1 + 4 * 0.25),
        ({"stages": (Img2Img(denoise=0.5),)}, 0.5),
        ({"stages": (Txt2Img(), ADetailer(denoise=0.5))}, 1.13),
        ({"stages": (Txt2Img(), Upscale(factor=2))}, 1 + 4 / 20),
    ],
)
def test_more_of_it_takes_longer(changes: dict[str, Any], times: float) -> None:
    plain = Record("x", width=1000, height=1000, steps=20)
    assert effort(Record("x", **{**BASE, **changes})) == pytest.approx(effort(plain) * times)
