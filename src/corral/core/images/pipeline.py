"""An image job, resolved: whatever decides a pixel is in its record; no worker adds to it."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import fields, replace

Name = Annotated[str, Meta(max_length=512)]
Prompt = Annotated[str, Meta(max_length=20_000)]
Seed = Annotated[int, Meta(ge=0, lt=2**32)]
"""Concrete: a missing one is drawn when the job is built."""
Steps = Annotated[int, Meta(ge=1, le=1000)]
Pixels = Annotated[int, Meta(ge=64, le=8192, multiple_of=8)]
Share = Annotated[float, Meta(ge=0, le=1)]
Factor = Annotated[float, Meta(ge=1, le=8)]
Place = Annotated[int, Meta(ge=0, le=2**31)]
MOST_PIXELS = 16384 * 16384
"""Of one image at its largest, as servers make them: 4096 × 4096, four times as large."""
MOST_AT_ONCE = 2**30
"""Of all images of a record together: three bytes each, they still fit a usual memory."""


class Part(Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """Root of everything a record is made of."""


P = TypeVar("P", bound=Part)


class Lora(Part, frozen=True):
    name: Name
    weight: Annotated[float, Meta(ge=-10, le=10)] = 1.0


class Refiner(Part, frozen=True):
    """A second model for the last steps of txt2img."""

    model: Name
    switch_at: Share = 0.8


class Hires(Part, frozen=True):
    """A second, larger pass inside txt2img."""

    factor: Factor = 2.0
    upscaler: Name = "Latent"
    steps: Annotated[int, Meta(ge=0, le=1000)] = 0
    """0: as many as the first pass."""
    denoise: Share = 0.5


class Txt2Img(Part, frozen=True, tag="txt2img", tag_field="stage"):
    refiner: Refiner | None = None
    hires: Hires | None = None


class Img2Img(Part, frozen=True, tag="img2img", tag_field="stage"):
    denoise: Share = 0.4
    steps: Annotated[int, Meta(ge=0, le=1000)] = 0
    """0: as many as the record says."""


class ADetailer(Part, frozen=True, tag="adetailer", tag_field="stage"):
    detector: Name = "face_yolov8n.pt"
    confidence: Share = 0.3
    denoise: Share = 0.4
    positive: Prompt = ""
    """Empty: the record's own."""
    negative: Prompt = ""


class Upscale(Part, frozen=True, tag="upscale", tag_field="stage"):
    factor: Factor = 2.0
    upscaler: Name = "lanczos"


Stage = Txt2Img | Img2Img | ADetailer | Upscale
ORDER: tuple[type[Stage], ...] = (Txt2Img, Img2Img, ADetailer, Upscale)
"""The only order in which stages run."""
STAGES = ("txt2img", "img2img", "adetailer", "upscale")
SKETCH = "sketch"
"""The backend that draws without a model. It also is the name of the model that only it has."""
ADETAILER = "adetailer"
"""The stage that a server may be without: it is somebody else's extension."""
WITH = "+"
"""Between a task and the stage that it needs beyond the usual ones."""
RENDER = "render"
"""The task of a record that any backend with real models may render."""


class LearningStep(Part, frozen=True):
    """Which learning run a job is a step of, if any."""

    enabled: bool = False
    plan: Name = ""
    step: Place = 0


class Record(Part, frozen=True):
    """What the documents call NormalizedJobRecord."""

    positive: Prompt
    negative: Prompt = ""
    model: Name = ""
    vae: Name = ""
    sampler: Name = ""
    scheduler: Name = ""
    steps: Steps = 20
    cfg_scale: Annotated[float, Meta(ge=0, le=100)] = 7.0
    width: Pixels = 512
    height: Pixels = 512
    clip_skip: Annotated[int, Meta(ge=1, le=12)] = 1
    batch_size: Annotated[int, Meta(ge=1, le=64)] = 1
    """Images of one pass; their seeds are seed, seed + 1, …"""
    seed: Seed = 0
    loras: Annotated[tuple[Lora, ...], Meta(max_length=64)] = ()
    stages: Annotated[tuple[Stage, ...], Meta(min_length=1, max_length=4)] = (Txt2Img(),)
    inputs: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    """Names of the job's inputs, where the chain begins with images."""
    backend: Name = ""
    """The only kind that may render it; empty: any that has the model."""
    pack: Name = ""
    row: Place = 0
    config_index: Place = 0
    variant_index: Place = 0
    batch_index: Place = 0
    variants: Name = ""
    """The plan that its variant is from, by digest."""
    output: Name = "{job}-{index:03}"
    learning: LearningStep = LearningStep()
    job_id: Name = ""

    @property
    def models(self) -> tuple[str, ...]:
        """Those that a worker must have, the base model first."""
        refiners = (
            stage.refiner.model
            for stage in self.stages
            if isinstance(stage, Txt2Img) and stage.refiner is not None
        )
        return tuple(dict.fromkeys(name for name in (self.model, *refiners) if name))


encode_record = msgspec.json.Encoder(order="deterministic").encode
decode_record = msgspec.json.Decoder(Record).decode


def digest_of(record: Record) -> str:
    """The `record_digest` of a replay card: the same for the same images to be. It covers all but
    the id. Defaults are left out of it, so that a new field changes none; no default may change."""
    return hashlib.sha256(encode_record(replace(canonical(record), job_id=""))).hexdigest()


def canonical(part: P) -> P:
    """Equal to `part`, and with the same bytes whether a default was written out or left out:
    msgspec leaves out what *is* the default, and keeps what only equals it."""
    changes = {}
    for name, default in _defaults(type(part)):
        value = getattr(part, name)
        kept = value
        if isinstance(value, Part):
            kept = canonical(value)
        elif isinstance(value, tuple):
            kept = tuple(canonical(one) if isinstance(one, Part) else one for one in value)
        if kept == default:
            kept = default
        if kept is not value:
            changes[name] = kept
    return replace(part, **changes) if changes else part


@cache
def _defaults(kind: type[Part]) -> tuple[tuple[str, object], ...]:
    return tuple((field.name, field.default) for field in fields(kind))


def largest(record: Record) -> int:
    """Pixels of each image after its largest stage; the size of input images is not known here."""
    width, height = record.width, record.height
    for stage in record.stages:
        grown = stage.hires if isinstance(stage, Txt2Img) else stage
        if isinstance(grown, Hires | Upscale):
            width, height = round(width * grown.factor), round(height * grown.factor)
    return width * height


def spelled_out(value: Any) -> Any:
    """A record or a part of one as JSON values, with all defaults."""
    if isinstance(value, Struct):
        config = value.__struct_config__
        tag = {config.tag_field: config.tag} if config.tag_field else {}
        names = value.__struct_fields__
        return {**tag, **{name: spelled_out(getattr(value, name)) for name in names}}
    return [spelled_out(one) for one in value] if isinstance(value, tuple) else value


def stage_name(stage: Stage) -> str:
    return STAGES[ORDER.index(type(stage))]


def task_of(record: Record) -> str:
    """What a worker must be able to do: `Needs.task` of its job."""
    task = record.backend or (SKETCH if record.model == SKETCH else RENDER)
    detailed = any(isinstance(stage, ADetailer) for stage in record.stages)
    return f"{task}{WITH}{ADETAILER}" if detailed else task
