"""What a record takes: VRAM, by a table, and effort. Rough on purpose: too little VRAM moves a job
to a bigger card after its first try, too much keeps it from cards that would do."""

from __future__ import annotations

import math
from typing import NamedTuple

from corral.core.images.pipeline import SKETCH, ADetailer, Img2Img, Record, Txt2Img, Upscale
from corral.core.job import Needs
from corral.pipelines.plan import OwnNeeds


class Family(NamedTuple):
    """Models of one build, known by parts of their names."""

    name: str
    words: tuple[str, ...]
    weights_gb: float
    per_megapixel_gb: float
    """Of each image in the batch, while it is sampled and decoded."""


FAMILIES = (
    Family("flux, 4 bit", ("flux1-dev-bnb-nf4", "flux-nf4", "flux_nf4", "nf4"), 7.0, 1.5),
    Family(
        "flux, 8 bit", ("flux-fp8", "flux_fp8", "flux1-dev-fp8", "flux1-schnell-fp8"), 12.5, 1.5
    ),
    Family("flux", ("flux",), 23.0, 1.5),
    Family("sd3", ("sd3", "sd_3", "stable-diffusion-3"), 11.0, 1.5),
    Family("sdxl", ("sdxl", "sd_xl", "xl", "pony", "illustrious", "noobai"), 6.8, 2.0),
    Family("sd2", ("sd2", "sd_2", "v2-1", "v2-0", "stable-diffusion-2"), 2.8, 2.2),
    Family("sd1", ("sd1", "sd_1", "sd-1", "v1-5", "v1-4", "1.5", "stable-diffusion-v1"), 2.4, 2.2),
    Family("any other", ("",), 4.0, 2.2),
)
"""The first with a word that is in the model's name, in small letters, counts."""
LORA_GB, DETECTOR_GB, UPSCALER_GB = 0.2, 0.5, 0.5
UPSCALED_MEGAPIXEL_GB = 0.3
"""Of the larger image, where a model does the upscaling; it goes tile by tile."""
RESAMPLERS = ("", "none", "lanczos", "nearest", "bicubic", "bilinear", "latent")
"""Upscalers that are no models and take no VRAM."""
DETAIL_MEGAPIXELS = 0.26
"""A detailer works on crops of about 512 × 512."""


def needs_of(record: Record, own: OwnNeeds) -> Needs:
    drawn = record.backend == SKETCH
    vram_gb = own.vram_gb
    if vram_gb is None:
        vram_gb = 0.0 if drawn or own.gpus == 0 else vram_gb_of(record)
    gpus = own.gpus
    if gpus is None:
        gpus = 0 if drawn and not vram_gb else 1
    return Needs(
        gpus=gpus,
        vram_gb=vram_gb,
        gpu=own.gpu or "",
        cpus=1.0 if own.cpus is None else own.cpus,
        memory_gb=own.memory_gb or 0.0,
        labels=own.labels,
        worker=own.worker or "auto",
        models=() if drawn else record.models,
    )


def vram_gb_of(record: Record) -> float:
    """The weights, which stay, and the largest of its stages; rounded up to the next tenth."""
    if all(isinstance(stage, Upscale) for stage in record.stages):
        weights = 0.0
    else:
        weights = max(family(name).weights_gb for name in record.models or ("",))
        weights += LORA_GB * len(record.loras)
    return math.ceil(round((weights + _largest_stage(record)) * 10, 6)) / 10


def family(model: str) -> Family:
    small = model.lower()
    return next(one for one in FAMILIES if any(word in small for word in one.words))


def _largest_stage(record: Record) -> float:
    per_megapixel = family(record.model).per_megapixel_gb * record.batch_size
    megapixels = record.width * record.height / 1e6
    most = 0.0
    for stage in record.stages:
        if isinstance(stage, Upscale):
            if stage.upscaler.lower() not in RESAMPLERS:
                larger = megapixels * stage.factor**2
                most = max(most, UPSCALER_GB + larger * UPSCALED_MEGAPIXEL_GB)
            continue
        if isinstance(stage, Txt2Img) and stage.hires is not None:
            megapixels *= stage.hires.factor**2
        extra = DETECTOR_GB if isinstance(stage, ADetailer) else 0.0
        most = max(most, megapixels * per_megapixel + extra)
    return most


def effort(record: Record) -> float:
    """How much work it is, so that what one took tells what others will: steps × megapixels ×
    images, over its stages. A rule of thumb; the pace that it is multiplied with is measured."""
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
