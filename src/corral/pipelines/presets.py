"""Named bases: the settings by stage that a plan can begin with."""

from __future__ import annotations

from collections.abc import Mapping

from corral.core.errors import PresetNotFound
from corral.pipelines.config import PlanConfig
from corral.pipelines.mistakes import convert, near, suggestion


def parse(value: object, where: str = "") -> PlanConfig:
    """What a preset holds, checked as a plan's `base` is."""
    return convert(value, PlanConfig, where=where)


def resolve(name: str, presets: Mapping[str, object]) -> PlanConfig:
    if name not in presets:
        known = sorted(presets)
        hint = suggestion(name, known, "`corral presets` lists those that are there.")
        raise PresetNotFound(
            f"No preset is called {name!r}. {hint}",
            details={"path": "preset", "near": near(name, known)},
        )
    return parse(presets[name], where=f"preset {name}")
