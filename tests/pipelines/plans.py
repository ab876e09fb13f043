"""Plans in a few words."""

from __future__ import annotations

from typing import Any

from corral.pipelines import Built, build, parse

BASE = {"txt2img": {"model": "m", "width": 512, "height": 512}}


def built(presets: Any = None, call_seed: int = 7, **plan: Any) -> Built:
    """Of a plan with one prompt and one model, where it does not say otherwise."""
    value: dict[str, Any] = {"name": "t"} | plan
    if "preset" not in value:
        value.setdefault("base", BASE)
    if "pack" not in value:
        value.setdefault("prompts", ["a castle"])
    return build(parse(value), presets=presets, seed=call_seed)
