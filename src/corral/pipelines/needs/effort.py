"""How much work a record is, so that what one took tells what others will: steps × megapixels ×
images, over its stages. A rule of thumb; the pace that it is multiplied with is measured."""

from __future__ import annotations

from corral.core.images.pipeline import ADetailer, Img2Img, Record, Txt2Img

DETAIL_MEGAPIXELS = 0.26
"""A detailer works on crops of about 512 × 512."""


def effort(record: Record) -> float:
    megapixels = record.width * record.height / 1e6
    total = 0.0
    for stage in record.stages:
        match stage:
            case Txt2Img(hires=hires):
                total += record.steps * megapixels
                if hires is not None:
                    megapixels *= hires.factor**2
                    total += (hires.steps or record.steps) * hires.denoise * megapixels
            case Img2Img():
                total += (stage.steps or record.steps) * stage.denoise * megapixels
            case ADetailer():
                total += record.steps * stage.denoise * DETAIL_MEGAPIXELS
            case _:
                megapixels *= stage.factor**2
                total += megapixels
    return total * record.batch_size
