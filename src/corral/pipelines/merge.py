"""A base and what is laid over it. Both stay as they are."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from corral.core.pipeline import STAGES
from corral.pipelines.config import Config, Overrides, Section

S = TypeVar("S", bound=Section)


def merge(base: Config, overrides: Overrides) -> Config:
    """A stage's override holds where it is switched on; what is null in it keeps the base."""
    changes = {}
    for stage in STAGES:
        override = getattr(overrides, stage)
        if override is not None and override.apply:
            changes[stage] = override
    return overlay(base, msgspec.convert(_given(changes), Config))


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


def _given(overrides: dict[str, Section]) -> dict[str, dict[str, object]]:
    return {
        stage: {
            name: value
            for name in override.__struct_fields__
            if name != "apply" and (value := getattr(override, name)) is not None
        }
        for stage, override in overrides.items()
    }
