"""Which kinds of backend there are, and where each is found. A worker that has none of a kind
imports nothing of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.runtime.pipeline.backend import Backend

KINDS = {
    "webui": ("corral.runtime.pipeline.webui", "WebUI"),
    "comfyui": ("corral.runtime.pipeline.comfyui", "ComfyUI"),
    "diffusers": ("corral.runtime.pipeline.diffusers_", "Diffusers"),
    "sketch": ("corral.runtime.pipeline.sketch", "Sketch"),
}


def open_backend(options: dict[str, Any]) -> Backend:
    """From one entry of `worker.backends`: its `type`, the rest is the constructor's."""
    rest = {name: value for name, value in options.items() if name != "type"}
    module, name = KINDS[options["type"]]
    backend: Backend = getattr(import_module(module), name)(**rest)
    return backend
