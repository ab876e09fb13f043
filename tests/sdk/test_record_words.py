"""What decided an image, in words."""

from __future__ import annotations

from corral.core.images.pipeline import Hires, Img2Img, Record, Txt2Img, spelled_out
from corral.sdk.images.record_words import described


def test_steps_that_are_as_many_as_the_records_are_not_told_as_none() -> None:
    record = Record(positive="x", stages=(Txt2Img(hires=Hires()), Img2Img(steps=7)))
    told = described(spelled_out(record))
    assert told["steps"] == "20"
    assert "txt2img.hires.steps" not in told
    assert told["img2img.steps"] == "7"
