"""What decided an image, in words: for a contact sheet, and for whoever looks at one job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from corral.core.images.pipeline import Record, Upscale, stage_name


def described(record: object) -> dict[str, str]:
    """A record's settings but for prompt and seed, most asked for first; empty for no record."""
    try:
        found = msgspec.convert(record, Record)
    except msgspec.ValidationError:
        return {}
    told = {"negative": found.negative}
    if not all(isinstance(stage, Upscale) for stage in found.stages):
        told |= {
            "model": found.model,
            "vae": found.vae,
            "sampler": found.sampler,
            "scheduler": found.scheduler,
            "steps": str(found.steps),
            "cfg_scale": f"{found.cfg_scale:g}",
            "size": f"{found.width} × {found.height}",
            "clip_skip": str(found.clip_skip) if found.clip_skip > 1 else "",
            "loras": ", ".join(f"{one.name}:{one.weight:g}" for one in found.loras),
        }
    told["inputs"] = ", ".join(found.inputs)
    told["stages"] = " → ".join(map(stage_name, found.stages))
    for stage in found.stages:
        told |= _flat(stage_name(stage), stage)
    return {name: value for name, value in told.items() if value}


def _flat(path: str, part: Struct) -> Iterator[tuple[str, str]]:
    for name in part.__struct_fields__:
        value: Any = getattr(part, name)
        if isinstance(value, Struct):
            yield from _flat(f"{path}.{name}", value)
        elif value is not None and (name, value) != ("steps", 0):  # as many as the record says
            yield f"{path}.{name}", f"{value:g}" if isinstance(value, float) else str(value)
