"""A learning run as people write it, and the batch that it becomes: one setting at several values.

Image number i of every value has the same seed, so that what differs is the value.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from corral.core.errors import InvalidPlan
from corral.core.images.pipeline import Prompt, Seed
from corral.core.job import QueueClass
from corral.pipelines.config import Overrides, PlanConfig, Section, change
from corral.pipelines.mistakes import convert, invalid
from corral.pipelines.plan import Backend, OwnNeeds, Path, Row, StageName, Swept, check_row

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
MOST_IMAGES = 1_000


class LearningPlan(Section, frozen=True):
    name: str
    variable: Path
    """The setting under test, as `txt2img.cfg_scale`."""
    values: Swept
    prompt: Row | Prompt
    images: Annotated[int, Meta(ge=1, le=MOST_IMAGES)] = 1
    """For each value."""
    seed: Seed | None = None
    """Of the first image of each value; left out, it follows from the name."""
    preset: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    base: PlanConfig | None = None
    overrides: Overrides = Overrides()
    stages: Annotated[tuple[StageName, ...], Meta(max_length=20)] | None = None
    backend: Backend = ""
    queue_class: QueueClass = field(default=QueueClass.BATCH, name="class")
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    needs: OwnNeeds = OwnNeeds()


def parse(value: object) -> LearningPlan:
    """The plan in a value that YAML or JSON gave, or an InvalidPlan that says where it is wrong."""
    if not isinstance(value, dict):
        raise InvalidPlan(
            "A learning plan is `key: value` pairs: `name`, `variable`, `values`, `prompt`, and "
            "`base` (or `preset`). See docs/learning.md.",
            details={"path": ""},
        )
    plan = convert(value, LearningPlan)
    check_row(value["prompt"], "prompt")
    if not NAME.fullmatch(plan.name):
        raise invalid(
            "name",
            "it has 1 to 64 letters, digits and _.-, and begins with none of the last two; got "
            f"{plan.name[:80]!r}.",
        )
    if "." not in plan.variable:
        raise invalid(
            "variable", f"it names a stage and a setting, as txt2img.steps; got {plan.variable!r}."
        )
    for one in plan.values:
        change(plan.variable, one, where="variable")
    told = [msgspec.json.encode(one) for one in plan.values]
    if len(set(told)) < len(told):
        raise invalid("values", "one of them is there twice. `images` makes more of each.")
    return plan


def encode(plan: LearningPlan) -> bytes:
    return msgspec.json.encode(plan)


def digest(plan: LearningPlan) -> str:
    return hashlib.sha256(encode(plan)).hexdigest()


def seed_of(plan: LearningPlan) -> int:
    if plan.seed is not None:
        return plan.seed
    return int(hashlib.sha256(plan.name.encode()).hexdigest()[:8], 16) >> 1


def batch_plan(plan: LearningPlan) -> dict[str, Any]:
    """The plan of its batch: each value is a config, each image of it a batch."""
    seed = seed_of(plan)
    given: dict[str, Any] = msgspec.to_builtins(plan)
    kept = ("preset", "base", "overrides", "stages", "backend", "class", "priority", "needs")
    return {
        **{key: given[key] for key in kept if key in given},
        "name": plan.name,
        "seed": seed,
        "prompts": [given["prompt"]],
        "sweep": {plan.variable: given["values"]},
        "variants": {"seed_mode": "fixed", "base_seed": seed},
        "batches": plan.images,
        "learning": {"enabled": True, "plan": plan.name},
    }
