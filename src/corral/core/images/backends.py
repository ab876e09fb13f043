"""What a worker renders images with: the entries of `worker.backends`, in order of preference."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from corral.core.images.pipeline import ADETAILER, RENDER, SKETCH, WITH

Url = Annotated[str, Meta(pattern=r"^https?://[^/?#@\s]+([/?#]\S*)?$", max_length=2048)]
"""Without a name and a password: addresses are told in logs and in failures of jobs."""
Pause = Annotated[float, Meta(ge=0, le=3600)]


class BackendEntry(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type"
):
    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def files(self) -> tuple[str, ...]:
        """What its backend reads on the worker, confined as it is."""
        return ()

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


class Workflow(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A workflow of the user's own for ComfyUI, in its API format."""

    file: str
    """An absolute path on the worker."""
    map: dict[str, str | list[str]]
    """A record's field to `node.input`, or to several of them."""
    stage: Literal["txt2img", "img2img", "adetailer", "upscale"] = "txt2img"
    """The stage that it renders; the others stay with our own graphs."""
    output: str = ""
    """The node whose images are the result, where it has several."""


class ComfyUIEntry(BackendEntry, frozen=True, tag="comfyui"):
    url: Url = "http://127.0.0.1:8188"
    username: str = ""
    """For the proxy before it that asks: ComfyUI itself knows no passwords."""
    password: str = ""
    workflow: Workflow | None = None
    restart: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        return (self.workflow.file,) if self.workflow is not None else ()


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


SERVERS = frozenset({"webui", "comfyui"})
"""Kinds that are somebody else's program, which lives and dies by itself."""
WITHOUT = {"diffusers": (ADETAILER,)}
"""Stages that a kind never has."""


def tasks_of(
    kinds: Iterable[str], lacking: Mapping[str, Collection[str]] = MappingProxyType({})
) -> tuple[str, ...]:
    """The tasks that a worker with these kinds of backend takes: what `Needs.task` may ask for.
    `lacking` are stages that its servers were found to be without."""
    found: dict[str, None] = {}
    for kind in kinds:
        for task in (kind,) if kind == SKETCH else (kind, RENDER):
            found[task] = None
            if ADETAILER not in (*WITHOUT.get(kind, ()), *lacking.get(kind, ())):
                found[f"{task}{WITH}{ADETAILER}"] = None
    return tuple(found)
