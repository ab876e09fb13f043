"""The plan of a batch as people write it, in YAML or JSON, checked so that a mistake is named."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from corral.core.errors import InvalidPlan
from corral.core.images.pipeline import LearningStep, Name, Prompt, Steps
from corral.core.job import MAX_DURATION_S, QueueClass
from corral.core.text import DEVICES
from corral.pipelines.config import (
    BatchSize,
    CfgScale,
    GivenSeed,
    Loras,
    Overrides,
    PlanConfig,
    Section,
)
from corral.pipelines.mistakes import convert, invalid

StageName = Literal["txt2img", "img2img", "adetailer", "upscale"]
Backend = Literal["", "sketch", "webui", "comfyui", "diffusers"]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
AnySeed = Annotated[int, Meta(ge=0, le=2**53)]
Word = Annotated[str, Meta(max_length=4_000)] | int | float
Values = Annotated[tuple[Word, ...], Meta(min_length=1, max_length=10_000)]
SlotName = Annotated[str, Meta(min_length=1, max_length=100)]
Path = Annotated[str, Meta(max_length=200)]
Swept = Annotated[tuple[Any, ...], Meta(min_length=1, max_length=10_000)]
_DIGITS = re.compile(r"(0?[1-9])?")
_NO_NAME = set('/\\:*?"<>|')
_LONGEST_NAME = 150
"""Bytes of a template: with a job's id and an ending, any disk takes the name."""
MOST_INPUTS = 64
"""Of one job."""
MANY = Meta(min_length=1, max_length=1_000)


class Row(Section, frozen=True):
    """A prompt, and what is its own."""

    positive: Prompt = ""
    """Left out only where it has images to begin with."""
    negative: Prompt = ""
    loras: Loras = ()
    seed: GivenSeed | None = None
    inputs: Annotated[tuple[Name, ...], Meta(max_length=MOST_INPUTS)] = ()


class Matrix(Section, frozen=True):
    """Lists of values for `[[slot]]`s in prompts."""

    slots: Annotated[dict[SlotName, Values], Meta(max_length=100)] = field(default_factory=dict)
    mode: Literal["fanout", "sequential", "rotate", "random"] = "fanout"
    limit: Count | None = None
    """Only the first so many combinations count."""
    rng_seed: AnySeed | None = None


class Axes(Section, frozen=True):
    """In the order in which they are combined."""

    model: Annotated[tuple[Name, ...], MANY] = ()
    vae: Annotated[tuple[Name, ...], MANY] = ()
    sampler: Annotated[tuple[Name, ...], MANY] = ()
    scheduler: Annotated[tuple[Name, ...], MANY] = ()
    cfg_scale: Annotated[tuple[CfgScale, ...], MANY] = ()
    steps: Annotated[tuple[Steps, ...], MANY] = ()
    batch_size: Annotated[tuple[BatchSize, ...], MANY] = ()


class Variants(Section, frozen=True):
    axes: Axes = Axes()
    max_variants: Count | None = None
    rng_seed: AnySeed | None = None
    seed_mode: Literal["none", "fixed", "per_variant"] = "none"
    base_seed: GivenSeed | None = None


class OwnNeeds(Section, frozen=True):
    """What replaces the table's word on what a worker must have."""

    vram_gb: Annotated[float, Meta(ge=0, le=10_000)] | None = None
    gpu: Name | None = None
    gpus: Annotated[int, Meta(ge=0, le=64)] | None = None
    cpus: Annotated[float, Meta(ge=0.1, le=1024)] | None = None
    memory_gb: Annotated[float, Meta(ge=0, le=100_000)] | None = None
    labels: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    worker: Name | None = None


class BatchPlan(Section, frozen=True):
    name: Annotated[str, Meta(max_length=200)] = ""
    seed: AnySeed | None = None
    """The batch's own: seeds that nobody gave are drawn from it."""
    preset: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    base: PlanConfig | None = None
    overrides: Overrides = Overrides()
    prompts: Annotated[tuple[Row | Prompt, ...], Meta(max_length=100_000)] = ()
    pack: Any = None
    """A whole pack, or the name of one that whoever builds knows."""
    matrix: Matrix | None = None
    sweep: Annotated[dict[Path, Swept], Meta(max_length=20)] = field(default_factory=dict)
    variants: Variants | None = None
    batches: Count = 1
    stages: Annotated[tuple[StageName, ...], Meta(max_length=20)] | None = None
    inputs: Annotated[tuple[Name, ...], Meta(max_length=10_000)] = ()
    """Images that the chain begins with, for rows that name none. Without prompts each is a row."""
    backend: Backend = ""
    queue_class: QueueClass = field(default=QueueClass.BATCH, name="class")
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    duration_s: Annotated[float, Meta(ge=1, le=MAX_DURATION_S)] = 3600.0
    """How long one job may take, the wait for its turn at a busy image server included."""
    output: Name = "{job}-{index:03}"
    learning: LearningStep = LearningStep()
    needs: OwnNeeds = OwnNeeds()


def parse(value: object) -> BatchPlan:
    """The plan in a value that YAML or JSON gave, or an InvalidPlan that says where it is wrong."""
    if not isinstance(value, dict):
        raise InvalidPlan(
            "A plan is `key: value` pairs: `base` (or `preset`) and `prompts` (or `pack`) at least."
            " See docs/pipelines.md.",
            details={"path": ""},
        )
    plan = convert(value, BatchPlan, values={"matrix.slots": Values, "sweep": Swept})
    if plan.preset is not None and plan.base is not None:
        raise invalid(
            "preset",
            "a preset stands for `base`; give one of the two, and changes under `overrides`.",
        )
    if plan.prompts and plan.pack is not None:
        raise invalid("pack", "give `prompts` or a `pack`, not both.")
    if not plan.prompts and plan.pack is None and not plan.inputs:
        raise invalid("prompts", "there is no prompt. Add one, or name a `pack`.")
    _check_rows(plan, value.get("prompts") or ())
    _check_output(plan.output)
    _check_text(plan)
    for word in (*plan.needs.labels, plan.needs.worker or ""):
        if not word.isprintable():
            raise invalid("needs", "labels and worker hold characters that cannot be printed.")
    return plan


def encode(plan: BatchPlan) -> bytes:
    """The same plan gives the same bytes; the order of free keys counts, as it does in the plan."""
    return msgspec.json.encode(plan)


def check_row(row: object, where: str) -> None:
    """A prompt without text is one that somebody wrote so, or has images instead."""
    if isinstance(row, dict) and "positive" not in row and not row.get("inputs"):
        raise invalid(where, "`positive` is missing. Add it.")


def _check_rows(plan: BatchPlan, written: Sequence[object]) -> None:
    for number, row in enumerate(written):
        check_row(row, f"prompts[{number}]")
    if len(plan.inputs) > MOST_INPUTS and (plan.prompts or plan.pack is not None):
        raise invalid(
            "inputs",
            f"a job begins with at most {MOST_INPUTS} images, and each prompt would have these "
            f"{len(plan.inputs):,}. Leave the prompts out to have a job for each image.",
        )


def _check_text(plan: BatchPlan) -> None:
    """YAML and Python know halves of characters, and boxes in boxes without end; JSON does not."""
    try:
        encode(plan)
    except UnicodeEncodeError as error:
        raise invalid("", f"the plan has text that is no Unicode: {error.reason}.") from error
    except RecursionError as error:
        raise invalid("pack", "it is nested too deeply.") from error
    except TypeError as error:
        raise invalid("", f"the plan has what JSON cannot say: {error}.") from error


def _check_output(template: str) -> None:
    """A file's name of exactly {job} and {index}; nothing that a format could be made to do."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise invalid("output", f"{error}. Such as `{{job}}-{{index:03}}`.") from error
    fields = sorted(name for _, name, _, _ in parts if name is not None)
    formats = [spec for _, name, spec, turn in parts if name == "index" and not turn]
    plain = all(not spec and not turn for _, name, spec, turn in parts if name == "job")
    if fields != ["index", "job"] or not plain or not _DIGITS.fullmatch(formats[0] or ""):
        raise invalid(
            "output", "it needs {job} and {index}, once each, such as `{job}-{index:03}`."
        )
    literal = "".join(text for text, _, _, _ in parts)
    if set(literal) & _NO_NAME or template[0] in ".-" or not literal.isprintable():
        raise invalid(
            "output",
            "it is a file's name: leave out slashes and the like, and begin with no . or -.",
        )
    if len(template.encode(errors="replace")) > _LONGEST_NAME:
        raise invalid("output", f"it is longer than {_LONGEST_NAME} bytes. Shorten it.")
    if template.partition(".")[0].lower() in DEVICES:
        raise invalid("output", "Windows takes a file of this name for a device. Begin otherwise.")
