"""Settings by stage as plans and presets give them: each may be left out, none is resolved yet. And
a base with what is laid over it or swept through it; it stays as it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import product
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import asdict

from corral.core.errors import TooManyRecords
from corral.core.images.pipeline import STAGES, Factor, Lora, Name, Pixels, Prompt, Share, Steps
from corral.pipelines.mistakes import convert

GivenSeed = Annotated[int, Meta(ge=-1, lt=2**32)]
"""-1 is what other programs write for "any": here it is the same as left out."""
CfgScale = Annotated[float, Meta(ge=0, le=100)]
ClipSkip = Annotated[int, Meta(ge=1, le=12)]
BatchSize = Annotated[int, Meta(ge=1, le=64)]
OwnSteps = Annotated[int, Meta(ge=0, le=1000)]
Loras = Annotated[tuple[Lora, ...], Meta(max_length=64)]


class Section(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Some settings. None: not given here."""


class RefinerSettings(Section, frozen=True):
    enabled: bool | None = None
    model: Name | None = None
    switch_at: Share | None = None


class HiresSettings(Section, frozen=True):
    enabled: bool | None = None
    factor: Factor | None = None
    upscaler: Name | None = None
    steps: OwnSteps | None = None
    denoise: Share | None = None


class Txt2ImgSettings(Section, frozen=True):
    """What it says of model, sampling and size holds for every stage of the chain."""

    enabled: bool | None = None
    model: Name | None = None
    vae: Name | None = None
    sampler: Name | None = None
    scheduler: Name | None = None
    steps: Steps | None = None
    cfg_scale: CfgScale | None = None
    width: Pixels | None = None
    height: Pixels | None = None
    clip_skip: ClipSkip | None = None
    batch_size: BatchSize | None = None
    seed: GivenSeed | None = None
    loras: Loras | None = None
    refiner: RefinerSettings | None = None
    hires: HiresSettings | None = None


class Img2ImgSettings(Section, frozen=True):
    enabled: bool | None = None
    denoise: Share | None = None
    steps: OwnSteps | None = None


class ADetailerSettings(Section, frozen=True):
    enabled: bool | None = None
    detector: Name | None = None
    confidence: Share | None = None
    denoise: Share | None = None
    positive: Prompt | None = None
    negative: Prompt | None = None


class UpscaleSettings(Section, frozen=True):
    enabled: bool | None = None
    factor: Factor | None = None
    upscaler: Name | None = None


class PlanConfig(Section, frozen=True):
    """All of them: the base of a plan, a preset."""

    txt2img: Txt2ImgSettings | None = None
    img2img: Img2ImgSettings | None = None
    adetailer: ADetailerSettings | None = None
    upscale: UpscaleSettings | None = None


class Txt2ImgOverride(Txt2ImgSettings, frozen=True):
    apply: bool = True


class Img2ImgOverride(Img2ImgSettings, frozen=True):
    apply: bool = True


class ADetailerOverride(ADetailerSettings, frozen=True):
    apply: bool = True


class UpscaleOverride(UpscaleSettings, frozen=True):
    apply: bool = True


class Overrides(Section, frozen=True):
    """What a plan changes of its base, by stage, each with a switch of its own."""

    txt2img: Txt2ImgOverride | None = None
    img2img: Img2ImgOverride | None = None
    adetailer: ADetailerOverride | None = None
    upscale: UpscaleOverride | None = None


S = TypeVar("S", bound=Section)


def merge(base: PlanConfig, overrides: Overrides) -> PlanConfig:
    """A stage's override holds where it is switched on; what is null in it keeps the base."""
    changes: dict[str, Any] = {}
    for stage in STAGES:
        override = getattr(overrides, stage)
        if override is None or not override.apply:
            continue
        given = asdict(override)
        del given["apply"]
        if any(value is not None for value in given.values()):
            # An override is the settings of its stage with a switch.
            changes[stage] = type(override).__bases__[0](**given)
    return overlay(base, PlanConfig(**changes))


def overlay(base: S, change: S) -> S:
    """Whatever `change` gives, and the rest of `base`."""
    found = {}
    for name in base.__struct_fields__:
        before, after = getattr(base, name), getattr(change, name)
        if isinstance(before, Section) and isinstance(after, Section):
            found[name] = overlay(before, after)
        else:
            found[name] = before if after is None else after
    return type(base)(**found)


def swept(
    config: PlanConfig, values: Mapping[str, Sequence[object]], *, limit: int
) -> list[PlanConfig]:
    """One config for each combination, the last path turning fastest. None keeps the base."""
    count = math.prod(len(some) for some in values.values())
    if count > limit:
        raise TooManyRecords(
            f"`sweep` has {count:,} combinations; a batch has at most {limit:,} records. Take "
            "values out.",
            details={"path": "sweep", "count": count, "limit": limit},
        )
    changes = [[change(path, value) for value in some] for path, some in values.items()]
    return [reduce(overlay, combination, config) for combination in product(*changes)]


def change(path: str, value: object, where: str = "sweep") -> PlanConfig:
    """A config with this setting alone, or an InvalidPlan that says what is wrong with it."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return convert(value, PlanConfig, where=where)
