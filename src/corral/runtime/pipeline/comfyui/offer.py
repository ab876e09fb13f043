"""What a ComfyUI server has to offer, for the agent to register."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from corral.core.images.backends import Workflow
from corral.runtime.files.models import model_name
from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.comfyui import workflow as comfyui_workflow
from corral.runtime.pipeline.comfyui.names import RESIZES
from corral.runtime.pipeline.comfyui.server import Busy, ComfyUIServer, Unanswered

NODES = {
    "txt2img": ("CheckpointLoaderSimple", "CLIPTextEncode", "EmptyLatentImage", "KSampler",
                "VAEDecode", "PreviewImage"),
    "img2img": ("CheckpointLoaderSimple", "CLIPTextEncode", "LoadImage", "VAEEncode", "KSampler",
                "VAEDecode", "PreviewImage"),
    "adetailer": ("FaceDetailer", "UltralyticsDetectorProvider", "LoadImage", "PreviewImage"),
    "upscale": ("LoadImage", "ImageScale", "PreviewImage"),
}  # fmt: skip
"""What each stage cannot do without."""


def offer(options: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, str]]:
    """See `kinds.offer_of`. Names are those in records; of two files with one name, their path."""
    server = ComfyUIServer(options["url"], options["username"], options["password"])
    # Our own graphs read checkpoints alone, a user's may begin with a bare model.
    places = [("CheckpointLoaderSimple", "ckpt_name"), *_places(options)]

    def look() -> tuple[tuple[str, ...], dict[str, str]]:
        models = plain([file for place in places for file in server.choices(*place)])
        stages = tuple(stage for stage, kinds in NODES.items() if not server.missing(kinds))
        return stages, dict.fromkeys(models, "")

    try:
        for _ in range(BUSY_LOOKS - 1):
            with suppress(Busy):
                return look()
        return look()
    except Unanswered as error:
        failed = StageFailed(
            "backend_down", f"No answer from the ComfyUI at {server.url} ({error})."
        )
        failed.hangs = isinstance(error, Busy)
        raise failed from error
    finally:
        server.close()


BUSY_LOOKS = 3
"""Answers out of time in a row that are a silent server; fewer are one that loads a model."""
NAMED = {
    "sampler": ("KSampler", "sampler_name"),
    "schedule": ("KSampler", "scheduler"),
    "VAE": ("VAELoader", "vae_name"),
    "LoRA": ("LoraLoader", "lora_name"),
    "upscaler": ("UpscaleModelLoader", "model_name"),
}


def names(options: Mapping[str, Any]) -> dict[str, list[str]]:
    """See `kinds.names_of`."""
    server = ComfyUIServer(options["url"], options["username"], options["password"])
    try:
        found = {
            kind: server.choices(node, field)
            for kind, (node, field) in NAMED.items()
            if server.about(node) is not None
        }
    except Unanswered:
        return {}
    finally:
        server.close()
    if "upscaler" in found:
        found["upscaler"] += RESIZES
    return found


def _places(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The nodes and inputs where the user's own workflow takes a model."""
    workflow: Workflow | None = msgspec.convert(options["workflow"], Workflow | None)
    if workflow is None:
        return []
    try:
        nodes, _ = comfyui_workflow.read(workflow.file)
        places = comfyui_workflow.places_of(workflow, nodes)
    except StageFailed:  # the jobs will say
        return []
    return [(nodes[node]["class_type"], field) for node, field in places.get("model", ())]


def plain(files: Sequence[str]) -> list[str]:
    whole = [model_name(file.replace("\\", "/")) for file in files]
    last = [name.rsplit("/", 1)[-1] for name in whole]
    alone = Counter(last)
    return [short if alone[short] == 1 else full for short, full in zip(last, whole, strict=True)]
