"""What a worker renders images with: the entries of `worker.backends`, in order of preference."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from corral.core.pipeline import RENDER, SKETCH

Url = Annotated[str, Meta(pattern="^https?://", max_length=2048)]
Pause = Annotated[float, Meta(ge=0, le=3600)]


class BackendEntry(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type"
):
    """Root of all kinds."""

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)

    def options(self) -> dict[str, Any]:
        """What its backend is made with: its type, and all it holds but what is the agent's."""
        held = {name: value for name, value in asdict(self).items() if name != "restart"}
        return {"type": self.kind, **held}


class WebUIEntry(BackendEntry, frozen=True, tag="webui"):
    url: Url = "http://127.0.0.1:7860"
    username: str = ""
    password: str = ""
    restart: str = ""
    """A command that starts the server again, run by the agent after it went down."""


class ComfyUIEntry(BackendEntry, frozen=True, tag="comfyui"):
    url: Url = "http://127.0.0.1:8188"
    workflow: str = ""
    """A workflow file of the user's, instead of our own graphs."""
    mapping: dict[str, str] = {}
    """Where in it the record's values go."""
    restart: str = ""


class DiffusersEntry(BackendEntry, frozen=True, tag="diffusers"):
    device: str = ""
    """As PyTorch names it; empty: a GPU where there is one."""
    dtype: Literal["", "float16", "bfloat16", "float32"] = ""
    """Empty: float16 on a GPU, float32 without one."""
    models: Annotated[int, Meta(ge=1, le=16)] = 1
    """As many stay loaded; what must go goes before the next one comes."""


class SketchEntry(BackendEntry, frozen=True, tag=SKETCH):
    step_s: Pause = 0.0
    """How long it lingers over each step."""
    load_s: Pause = 0.0
    """How long it pretends to load a model."""
    vram_gb: Annotated[float, Meta(ge=0, le=10_000)] = 0.0
    """The card that it plays: images of more megapixels than this run out of memory. 0: any."""


Entry = WebUIEntry | ComfyUIEntry | DiffusersEntry | SketchEntry


def tasks_of(kinds: Iterable[str]) -> tuple[str, ...]:
    """The tasks that a worker with these kinds of backend takes: what `Needs.task` may ask for."""
    found = dict.fromkeys(kinds)
    if found.keys() - {SKETCH}:
        found[RENDER] = None
    return tuple(found)
