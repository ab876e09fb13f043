"""A base and what is laid over it. Both stay as they are."""

from __future__ import annotations

from typing import Any, TypeVar

from corral.pipelines.config import (
    ADetailerSettings,
    Img2ImgSettings,
    Overrides,
    PlanConfig,
    Section,
    Txt2ImgSettings,
    UpscaleSettings,
)

S = TypeVar("S", bound=Section)

_SETTINGS: dict[str, type[Section]] = {
    "txt2img": Txt2ImgSettings,
    "img2img": Img2ImgSettings,
    "adetailer": ADetailerSettings,
    "upscale": UpscaleSettings,
}


def merge(base: PlanConfig, overrides: Overrides) -> PlanConfig:
    """A stage's override holds where it is switched on; what is null in it keeps the base."""
    changes: dict[str, Any] = {}
    for stage, settings in _SETTINGS.items():
        override = getattr(overrides, stage)
        if override is None or not override.apply:
            continue
        given = {name: getattr(override, name) for name in settings.__struct_fields__}
        if any(value is not None for value in given.values()):
            changes[stage] = settings(**given)
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
