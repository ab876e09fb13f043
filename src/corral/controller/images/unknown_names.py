"""Names in a plan that no image server here has, told before anything runs: a slip of the pen.

Agents say what their servers have. Where one does not say, nothing is concluded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches

from corral.core.images.names import folded
from corral.core.images.pipeline import (
    RENDER,
    SKETCH,
    WITH,
    Record,
    Txt2Img,
    Upscale,
    task_of,
)
from corral.core.worker import ImageServer, Worker
from corral.runtime.files.models import model_name

DIFFUSERS = "diffusers"
OWN = ("", "none", "automatic")
"""Words for what comes with the model."""
EVERYWHERE = ("automatic", "normal", "uniform")
"""Schedules that every server has, whatever it calls them."""
LATENT = "latent"
SHOWN = 5
MOST = 20
"""Mistakes that are told of one plan."""

Asked = tuple[str, str, str]
"""A task, a kind of name, a name."""


def unknown_names(
    records: Iterable[tuple[Record, Collection[str]]], workers: Sequence[Worker]
) -> list[str]:
    """Warnings about records, each with the models that it needs as workers call them."""
    asked: dict[Asked, None] = {}
    for record, models in records:
        task = task_of(record).partition(WITH)[0]
        if task != SKETCH:
            asked.update(dict.fromkeys((task, *one) for one in _named(record, models)))
    told = (_complaint(*one, workers) for one in asked)
    return [one for one in told if one][:MOST]


def _named(record: Record, models: Collection[str]) -> Iterator[tuple[str, str]]:
    for model in models:
        yield "model", model
    drawn = [stage for stage in record.stages if not isinstance(stage, Upscale)]
    if drawn:
        yield "sampler", record.sampler
        yield "schedule", record.scheduler
        for name in record.vae.split(","):
            yield "VAE", name.strip()
        for lora in record.loras:
            yield "LoRA", lora.name
    for stage in record.stages:
        if isinstance(stage, Upscale):
            yield "upscaler", stage.upscaler
        elif isinstance(stage, Txt2Img) and stage.hires is not None:
            yield "upscaler", stage.hires.upscaler


def _complaint(task: str, kind: str, name: str, workers: Sequence[Worker]) -> str:
    if folded(name) in OWN:
        return ""
    able = [one for one in workers if task in one.capabilities.task_types]
    servers = [server for one in able for server in one.servers if task in (RENDER, server.kind)]
    if not servers or any(not one.names for one in servers):
        return ""
    if kind == "model":
        if any(one.capabilities.fetches_models for one in able):
            return ""
        has = dict.fromkeys(model for one in able for model in one.capabilities.models_present)
        return "" if name in has else _told(kind, name, has)
    if any(DIFFUSERS in one.capabilities.task_types for one in able) and task == RENDER:
        return ""  # it has its own
    if any(kind not in one.names for one in servers):
        return ""
    has = dict.fromkeys(known for one in servers for known in one.names[kind])
    return "" if KNOWN[kind](name, has, servers) else _told(kind, name, has)


def _is_sampler(name: str, has: Collection[str], servers: Sequence[ImageServer]) -> bool:
    """Many write the schedule into the same name: `DPM++ 2M Karras`."""
    wanted = folded(name)
    schedules = [folded(one) for server in servers for one in server.names.get("schedule", ())]
    return any(wanted in (one, *(one + end for end in schedules)) for one in map(folded, has))


def _is_schedule(name: str, has: Collection[str], servers: Sequence[ImageServer]) -> bool:
    return folded(name) in (*EVERYWHERE, *map(folded, has))


def _is_file(name: str, has: Collection[str], servers: Sequence[ImageServer]) -> bool:
    return _file(name) in map(_file, has)


def _is_upscaler(name: str, has: Collection[str], servers: Sequence[ImageServer]) -> bool:
    return (
        name in has
        or folded(name).startswith(LATENT)
        or folded(name) in map(folded, has)
        or _is_file(name, has, servers)
    )


KNOWN: Mapping[str, Callable[[str, Collection[str], Sequence[ImageServer]], bool]] = {
    "sampler": _is_sampler,
    "schedule": _is_schedule,
    "VAE": _is_file,
    "LoRA": _is_file,
    "upscaler": _is_upscaler,
}


def _file(name: str) -> str:
    return model_name(name.replace("\\", "/").rpartition("/")[2]).lower()


def _told(kind: str, name: str, has: Collection[str]) -> str:
    by_word = {model_name(one).lower(): one for one in reversed(list(has))}
    near = [by_word[one] for one in get_close_matches(_file(name)[:100], by_word, 3)]
    if near:
        hint = f"Did you mean {_listed(near, 'or')}?"
    elif has:
        some = list(has)[:SHOWN]
        hint = f"There {'is' if len(has) == 1 else 'are'} {_listed(some, 'and', len(has))}."
    else:
        hint = "There is none."
    where = "worker" if kind == "model" else "image server"
    return f"No {where} has the {kind} {name!r}. {hint}"


def _listed(names: Sequence[str], word: str, count: int = 0) -> str:
    if count > len(names):
        return f"{', '.join(names)} and {count - len(names)} more"
    return f" {word} ".join(filter(None, (", ".join(names[:-1]), names[-1])))
