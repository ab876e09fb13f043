"""What a worker must have for a record, by the table."""

from __future__ import annotations

import math

from corral.core.images.pipeline import SKETCH, ADetailer, Record, Txt2Img, Upscale
from corral.core.job import Needs
from corral.pipelines.needs.vram_table import TABLE, Family, Table
from corral.pipelines.plan import OwnNeeds


def needs_of(record: Record, own: OwnNeeds | None = None, *, table: Table = TABLE) -> Needs:
    own = own or OwnNeeds()
    drawn = record.backend == SKETCH
    vram_gb = own.vram_gb
    if vram_gb is None:
        vram_gb = 0.0 if drawn or own.gpus == 0 else vram_gb_of(record, table)
    gpus = own.gpus
    if gpus is None:
        gpus = 0 if drawn and not vram_gb else 1
    return Needs(
        gpus=gpus,
        vram_gb=vram_gb,
        cpus=1.0 if own.cpus is None else own.cpus,
        memory_gb=own.memory_gb or 0.0,
        labels=own.labels,
        worker=own.worker or "auto",
        models=() if drawn else record.models,
    )


def vram_gb_of(record: Record, table: Table = TABLE) -> float:
    """The weights, which stay, and the hungriest of its stages; to the next tenth."""
    if all(isinstance(stage, Upscale) for stage in record.stages):
        weights = 0.0
    else:
        weights = max(family(name, table).weights_gb for name in record.models or ("",))
        weights += table.lora_gb * len(record.loras)
    return math.ceil(round((weights + _largest_stage(record, table)) * 10, 6)) / 10


def family(model: str, table: Table = TABLE) -> Family:
    small = model.lower()
    return next(
        (one for one in table.families if any(word in small for word in one.words)),
        table.families[-1],
    )


def _largest_stage(record: Record, table: Table) -> float:
    per_megapixel = family(record.model, table).per_megapixel_gb * record.batch_size
    megapixels = record.width * record.height / 1e6
    most = 0.0
    for stage in record.stages:
        if isinstance(stage, Upscale):
            most = max(most, _upscaled(stage, megapixels, table))
            continue
        if isinstance(stage, Txt2Img) and stage.hires is not None:
            megapixels *= stage.hires.factor**2
        extra = table.detector_gb if isinstance(stage, ADetailer) else 0.0
        most = max(most, megapixels * per_megapixel + extra)
    return most


def _upscaled(stage: Upscale, megapixels: float, table: Table) -> float:
    if stage.upscaler.lower() in table.resamplers:
        return 0.0
    return table.upscaler_gb + megapixels * stage.factor**2 * table.upscaled_megapixel_gb
