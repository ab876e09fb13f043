"""Settings tried at several values each, by dotted path."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product

from corral.core.errors import TooManyRecords
from corral.pipelines.config import PlanConfig, overlay
from corral.pipelines.mistakes import convert

Values = Mapping[str, Sequence[object]]


def expand(config: PlanConfig, sweep: Values, *, limit: int) -> list[PlanConfig]:
    """One config for each combination, the last path turning fastest. None keeps the base."""
    count = math.prod(len(values) for values in sweep.values())
    if count > limit:
        raise TooManyRecords(
            f"`sweep` has {count:,} combinations; a batch has at most {limit:,} records. Take "
            "values out.",
            details={"path": "sweep", "count": count, "limit": limit},
        )
    changes = [[change(path, value) for value in values] for path, values in sweep.items()]
    found = []
    for combination in product(*changes):
        swept = config
        for one in combination:
            swept = overlay(swept, one)
        found.append(swept)
    return found


def change(path: str, value: object, where: str = "sweep") -> PlanConfig:
    """A config with this setting alone, or an InvalidPlan that says what is wrong with it."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return convert(value, PlanConfig, where=where)
