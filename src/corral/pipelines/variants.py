"""The combinations of a batch's axes, shuffled and cut, and the seed of each."""

from __future__ import annotations

import hashlib
import math
from itertools import product
from random import Random
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from corral.core.errors import TooManyRecords
from corral.pipelines import seeds
from corral.pipelines.plan import Axes, Variants

AXES: tuple[str, ...] = Axes.__struct_fields__
Variant = dict[str, Any]
"""What it sets, by the record's own names."""


def expand(plan: Variants, *, limit: int) -> list[Variant]:
    """Seeds of the plan are resolved (see `resolved`). No axis: one variant that sets nothing."""
    named = [(axis, values) for axis in AXES if (values := getattr(plan.axes, axis))]
    if not named:
        return [{}]
    count = math.prod(len(values) for _, values in named)
    if count > limit:
        raise TooManyRecords(
            f"`variants.axes` has {count:,} combinations, and all must be there to be shuffled; at "
            f"most {limit:,} are. Take values out.",
            details={"path": "variants.axes", "count": count, "limit": limit},
        )
    names = [axis for axis, _ in named]
    combinations = [
        dict(zip(names, values, strict=True)) for values in product(*(one for _, one in named))
    ]
    Random(plan.rng_seed).shuffle(combinations)  # noqa: S311 (to be drawn again)
    return combinations[: plan.max_variants]


def resolved(plan: Variants, seed: int) -> Variants:
    """With the seed of its shuffle, drawn from the batch's where it has none."""
    if plan.rng_seed is not None:
        return plan
    return replace(plan, rng_seed=seeds.drawn(seed, "variants"))


def digest(plan: Variants) -> str:
    """What records of these variants have in common."""
    named = {**asdict(plan), "axes": asdict(plan.axes)}  # all of it, as defaults may be given too
    return hashlib.sha256(msgspec.json.encode(named, order="deterministic")).hexdigest()
