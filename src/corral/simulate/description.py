"""The YAML that describes a cluster and its jobs, checked so that a mistake is named."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec
import yaml
from msgspec import Meta, Struct

from corral.core.errors import InvalidSettings
from corral.core.job import QueueClass
from corral.pipelines.mistakes import BOUNDS, KINDS, NOTHING, split, value_at

Name = Annotated[str, Meta(min_length=1, max_length=100)]
Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]
Positive = Annotated[float, Meta(gt=0, le=31_536_000)]
Gigabytes = Annotated[float, Meta(ge=0, le=10_000)]
Share = Annotated[float, Meta(ge=0, le=1)]

MAX_JOBS = 200_000
MAX_WORKERS = 1_000


class DescriptionSection(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the file; a word that it does not know is a mistake."""


class Machine(DescriptionSection, frozen=True):
    """A worker with one GPU that runs one job at a time."""

    name: Name
    speed: Annotated[float, Meta(gt=0, le=1_000)] = 1.0
    """A job of 10 s takes 10 s divided by this."""
    vram_gb: Gigabytes = 24.0
    models: tuple[str, ...] | None = None
    """What is on its disk; left out: every model."""


class DescribedModel(DescriptionSection, frozen=True):
    name: Name
    vram_gb: Gigabytes = 0.0
    load_s: Seconds = 20.0


class Mix(DescriptionSection, frozen=True):
    count: Annotated[int, Meta(ge=1, le=MAX_JOBS)]
    seconds: tuple[Positive, Positive]
    """The shortest and the longest, on a worker of speed 1."""
    queue_class: QueueClass = QueueClass.BATCH
    models: dict[str, Positive] = {}
    """Names with weights; none: jobs without a model."""
    vram_gb: Gigabytes = 0.0
    from_s: Seconds = 0.0
    over_s: Seconds = 0.0
    """They arrive at random moments of this span; 0: all at once."""
    retries: Annotated[int, Meta(ge=0, le=100)] = 3


class Outage(DescriptionSection, frozen=True):
    worker: Name
    at_s: Seconds
    for_s: Positive


class Failures(DescriptionSection, frozen=True):
    attempts: Annotated[float, Meta(ge=0, le=0.9)] = 0.0
    """The share of attempts that fail, each somewhere on its way."""
    outages: tuple[Outage, ...] = ()


class Description(DescriptionSection, frozen=True):
    workers: tuple[Machine, ...]
    jobs: tuple[Mix, ...]
    models: tuple[DescribedModel, ...] = ()
    failures: Failures = Failures()
    seed: Annotated[int, Meta(ge=0)] = 0
    """The first one."""
    seeds: Annotated[int, Meta(ge=1, le=1_000)] = 1
    aging_s: Positive = 60.0


_KEYS = sorted(
    {
        field.name
        for section in (Description, Machine, DescribedModel, Mix, Failures, Outage)
        for field in msgspec.structs.fields(section)
    }
)
"""All words that the file may have as keys."""
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


def read(path: Path) -> Description:
    """What a file describes, or InvalidSettings with one sentence that names the culprit."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        told = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InvalidSettings(
            f"{path} cannot be read: {told}. `corral simulate` takes a YAML file as in "
            "docs/simulate.md."
        ) from error
    try:
        parsed = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidSettings(
            f"{path} is not valid YAML, {_unreadable(error)}. See that brackets close and "
            "that lines which belong together are indented alike."
        ) from error
    return parse(parsed, str(path), text)


def parse(parsed: object, where: str, text: str = "") -> Description:
    if not isinstance(parsed, dict):
        raise InvalidSettings(
            f"{where} must hold `workers:`, `jobs:` and perhaps `models:`, each with a list below; "
            "see docs/simulate.md."
        )
    try:
        described = msgspec.convert(parsed, Description)
    except msgspec.ValidationError as error:
        told = _told(str(error).replace("`$", "`"), parsed, text)
        raise InvalidSettings(f"{where}: {told} See docs/simulate.md.") from error
    mistake = _mistake(described)
    if mistake:
        raise InvalidSettings(f"{where}: {mistake}")
    return described


def _mistake(described: Description) -> str | None:
    workers = [one.name for one in described.workers]
    models = [one.name for one in described.models]
    if not workers or not described.jobs:
        return "there must be at least one worker and one entry under `jobs`."
    if len(workers) > MAX_WORKERS:
        return f"{len(workers)} workers are more than the {MAX_WORKERS:,} that are simulated."
    if sum(mix.count for mix in described.jobs) > MAX_JOBS:
        return f"more than {MAX_JOBS:,} jobs are not simulated."
    for kind, names in (("worker", workers), ("model", models)):
        for name in names:
            if names.count(name) > 1:
                return f"two entries describe the {kind} {name}; give each its own name."
    wanted = [name for mix in described.jobs for name in mix.models]
    present = [name for one in described.workers for name in one.models or ()]
    for name in (*wanted, *present):
        if name not in models:
            return f"the model {name} is named, but `models` does not describe it."
    for outage in described.failures.outages:
        if outage.worker not in workers:
            return f"an outage names the worker {outage.worker}, which `workers` does not describe."
    outages = sorted(described.failures.outages, key=lambda one: (one.worker, one.at_s))
    for one, following in pairwise(outages):
        if one.worker == following.worker and one.at_s + one.for_s >= following.at_s:
            return f"two outages of the worker {one.worker} overlap; make them one."
    for number, mix in enumerate(described.jobs, 1):
        if mix.seconds[0] > mix.seconds[1]:
            return (
                f"`jobs`, entry {number}: seconds are [shortest, longest]; got {list(mix.seconds)}."
            )
        for name in mix.models or [""]:
            if not any(able(one, name, mix.vram_gb, described) for one in described.workers):
                return f"`jobs`, entry {number}: {_nobody(name, mix, described)}"
    return None


def _nobody(model: str, mix: Mix, described: Description) -> str:
    most = max(one.vram_gb for one in described.workers)
    size = next((one.vram_gb for one in described.models if one.name == model), 0.0)
    wanted = max(size, mix.vram_gb)
    if most < wanted:
        what = f"the model {model}" if size > mix.vram_gb else "jobs"
        return (
            f"no worker could ever run it: {what} of {wanted:g} GB of VRAM, and the largest worker "
            f"has {most:g}. Raise a worker's `vram_gb`, or lower it here."
        )
    return (
        f"no worker could ever run it: none with enough VRAM has the model {model} on its disk. "
        "Name it under that worker's `models`, or leave `models` out there: then it has them all."
    )


def able(worker: Machine, model: str, vram_gb: float, described: Description) -> bool:
    """Whether a worker could run such a job when nothing else is there."""
    size = next((one.vram_gb for one in described.models if one.name == model), 0.0)
    present = not model or worker.models is None or model in worker.models
    return present and worker.vram_gb >= max(vram_gb, size)


# --- mistakes that msgspec and YAML find ---


def _told(said: str, parsed: object, text: str) -> str:
    """msgspec's sentence as one for people who wrote YAML."""
    what, path = split(said)
    steps = [name or int(number) for name, number in _STEP.findall(path)]
    if re.search(r"unknown field `(.*)`", what):
        steps.append(what.split("`")[1])  # the line of the word itself
    line = _line(text, steps)
    where = f"line {line}, " if line else ""
    return f"{where}{_place(steps)}{_wrong(what, parsed, steps)}"


def _wrong(what: str, parsed: object, steps: Sequence[str | int]) -> str:
    value = value_at(parsed, steps)
    got = "" if value is NOTHING or isinstance(value, dict) else f"; got {value!r:.80}"
    if match := re.fullmatch(r"Object contains unknown field `(.*)`", what):
        near = get_close_matches(match[1], _KEYS, 1)
        return "nothing is called so" + (f"; did you mean `{near[0]}`?" if near else ".")
    if match := re.fullmatch(r"Object missing required field `(.*)`", what):
        return f"`{match[1]}` is missing."
    if what.startswith("Invalid enum value"):
        return f"it is one of {', '.join(QueueClass)}{got}."
    if match := re.fullmatch(r"Expected `(\w+)` (>=|<=|>|<) (.*)", what):
        return f"it must be {BOUNDS[match[2]]} {match[3]}{got}."
    if match := re.fullmatch(r"Expected `array` of (?:at (?:least|most) )?length (\d+).*", what):
        return f"it needs a list of {match[1]}{got}."
    if match := re.fullmatch(r"Expected `(\w+)(?: \| null)?`, got `\w+`", what):
        return f"it needs {KINDS.get(match[1], match[1])}{got}."
    return f"{what}{got}."


def _place(steps: Sequence[str | int]) -> str:
    """`jobs`, entry 1, `seconds`: people count from one."""
    parts = [f"`{one}`" if isinstance(one, str) else f"entry {one + 1}" for one in steps]
    return f"{', '.join(parts)}: " if parts else ""


def _line(text: str, steps: Sequence[str | int]) -> int:
    """Where it stands in the file, as far as the way there leads; 0 where that is nowhere."""
    node, line = yaml.compose(text, Loader=yaml.SafeLoader), 0
    for step in steps:
        if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
            node = node.value[step]
        elif isinstance(node, yaml.MappingNode):
            pairs = {key.value: (key, value) for key, value in node.value}
            if step not in pairs:
                break
            key, node = pairs[step]
            line = key.start_mark.line + 1
            continue
        else:
            break
        line = node.start_mark.line + 1
    return line


def _unreadable(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    return f"{where}{' '.join(problem.split())}"
