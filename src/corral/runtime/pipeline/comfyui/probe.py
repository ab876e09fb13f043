"""What a ComfyUI server has to offer, for the agent to register."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from corral.runtime.files.models import model_name
from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.comfyui import workflow as comfyui_workflow
from corral.runtime.pipeline.comfyui.names import RESIZES
from corral.runtime.pipeline.comfyui.server import ComfyUIServer, Unanswered, versions_of

NODES = {
    "txt2img": ("CheckpointLoaderSimple", "CLIPTextEncode", "EmptyLatentImage", "KSampler",
                "VAEDecode", "PreviewImage"),
    "img2img": ("CheckpointLoaderSimple", "CLIPTextEncode", "LoadImage", "VAEEncode", "KSampler",
                "VAEDecode", "PreviewImage"),
    "adetailer": ("FaceDetailer", "UltralyticsDetectorProvider", "LoadImage", "PreviewImage"),
    "upscale": ("LoadImage", "ImageScale", "PreviewImage"),
}  # fmt: skip
"""What each stage cannot do without."""


class ComfyUIProbe(Struct, frozen=True):
    models: tuple[str, ...] = ()
    """By the names that records have for them; of two files with one name, by their whole way."""
    vaes: tuple[str, ...] = ()
    loras: tuple[str, ...] = ()
    samplers: tuple[str, ...] = ()
    schedulers: tuple[str, ...] = ()
    upscalers: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    vram_free_gb: float = 0.0


def probe(config: Mapping[str, Any]) -> ComfyUIProbe:
    """Of an entry of `worker.backends`. Raises StageFailed `backend_down` where nobody answers."""
    server = ComfyUIServer(
        str(config.get("url") or "http://127.0.0.1:8188"),
        str(config.get("username") or ""),
        str(config.get("password") or ""),
    )
    try:
        stats = server.stats()
        device = (stats.get("devices") or [{}])[0]

        def names(kind: str, field: str) -> tuple[str, ...]:
            return tuple(server.choices(kind, field))

        return ComfyUIProbe(
            models=plain(
                (
                    *names("CheckpointLoaderSimple", "ckpt_name"),
                    # Our own graphs read checkpoints alone, a user's may begin with a bare model.
                    *(file for place in _places(config) for file in names(*place)),
                )
            ),
            vaes=names("VAELoader", "vae_name"),
            loras=names("LoraLoader", "lora_name"),
            samplers=names("KSampler", "sampler_name"),
            schedulers=names("KSampler", "scheduler"),
            upscalers=(
                *dict.fromkeys(RESIZES.values()),
                *names("UpscaleModelLoader", "model_name"),
            ),
            stages=tuple(stage for stage, kinds in NODES.items() if not server.missing(kinds)),
            versions=versions_of(stats),
            vram_free_gb=round(float(device.get("vram_free") or 0) / 1e9, 3),
        )
    except Unanswered as error:
        raise StageFailed(
            "backend_down", f"No answer from the ComfyUI at {server.url} ({error})."
        ) from error
    finally:
        server.close()


def _places(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The nodes and inputs where the user's own workflow takes a model."""
    workflow = comfyui_workflow.read_workflow(config.get("workflow"))
    if workflow is None:
        return []
    try:
        nodes, _ = comfyui_workflow.read(workflow.file)
        places = comfyui_workflow.places_of(workflow, nodes)
    except StageFailed:  # the jobs will say
        return []
    return [(nodes[node]["class_type"], field) for node, field in places.get("model", ())]


def plain(files: Sequence[str]) -> tuple[str, ...]:
    whole = [model_name(file.replace("\\", "/")) for file in files]
    last = [name.rsplit("/", 1)[-1] for name in whole]
    alone = Counter(last)
    found = (short if alone[short] == 1 else full for short, full in zip(last, whole, strict=True))
    return tuple(dict.fromkeys(found))
