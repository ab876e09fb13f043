"""Which kinds of backend there are. A worker that has none of a kind imports nothing of it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from corral.core.images.backends import tasks_of
from corral.core.images.pipeline import WITH, Record, task_of

if TYPE_CHECKING:
    from corral.runtime.pipeline.backend import Backend

KINDS = {
    "webui": ("corral.runtime.pipeline.webui.backend", "WebUI"),
    "comfyui": ("corral.runtime.pipeline.comfyui.backend", "ComfyUI"),
    "diffusers": ("corral.runtime.pipeline.diffusers.backend", "Diffusers"),
    "sketch": ("corral.runtime.pipeline.sketch", "Sketch"),
}


def open_backend(options: dict[str, Any]) -> Backend:
    """From one entry of `worker.backends`: its `type`, the rest is the constructor's."""
    rest = {name: value for name, value in options.items() if name != "type"}
    module, name = KINDS[options["type"]]
    backend: Backend = getattr(import_module(module), name)(**rest)
    return backend


def choices(
    record: Record, offered: list[dict[str, Any]], begun_with: str = ""
) -> list[dict[str, Any]]:
    """Those of a worker's backends that may render a record, in the order of preference."""
    task = begun_with or task_of(record).partition(WITH)[0]
    return [one for one in offered if task in tasks_of([one["type"]])]


def tidy(options: dict[str, Any], folder: str) -> None:
    """Gives back what a job that was killed has left changed at an image server. `folder`: where
    jobs take turns."""
    if options["type"] == "webui":
        from corral.runtime.pipeline.webui.user_settings import give_back_left

        give_back_left(options, folder)


def names_of(options: dict[str, Any]) -> dict[str, list[str]]:
    """What else an image server has, by kind: see `ImageServer.names`."""
    if options["type"] == "webui":
        from corral.runtime.pipeline.webui.stock import names
    else:
        from corral.runtime.pipeline.comfyui.offer import names
    return names(options)


def offer_of(options: dict[str, Any]) -> tuple[tuple[str, ...], dict[str, str]]:
    """The stages that an image server can do, and its models with their sha256 where it knows.
    Raises `StageFailed` where it does not answer."""
    if options["type"] == "webui":
        from corral.runtime.pipeline.webui.stock import offer
    else:
        from corral.runtime.pipeline.comfyui.offer import offer
    return offer(options)
