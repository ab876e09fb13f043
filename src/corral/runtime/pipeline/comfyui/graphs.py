"""Our own ComfyUI graphs, one image each. They leave nothing that decides a pixel to the server.

The images of a batch are graphs of their own, because their seeds are seed, seed + 1, … and a
batch of ComfyUI's draws all of its noise from the first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from corral.core.images.pipeline import ADetailer, Hires, Img2Img, Record, Refiner, Txt2Img, Upscale
from corral.runtime.pipeline.backend import StageFailed, key, times
from corral.runtime.pipeline.comfyui.names import (
    EXTENSIONS,
    LATENT_RESIZES,
    OWN_VAE,
    RESIZES,
    sampler_and_scheduler,
)

Link = list[Any]
"""An output of another node: its id, and which of its outputs."""
LOADERS = {
    "CheckpointLoaderSimple": "ckpt_name",
    "VAELoader": "vae_name",
    "LoraLoader": "lora_name",
    "UpscaleModelLoader": "model_name",
    "UltralyticsDetectorProvider": "model_name",
    "UNETLoader": "unet_name",
}
"""Nodes that read a model, and the input that names it."""
SEEDS = ("seed", "noise_seed")
RESIZERS = ("ImageScale", "ImageScaleBy", "ImageUpscaleWithModel")
MARK = "corral"
CHECKPOINTS = ("ckpt_name", "unet_name")
"""Inputs that name a model which is slow enough to be counted, of whatever node."""


Pick = Callable[[str, str, str], str]
"""The server's own name, by a node's kind and its field, for what a record names."""


class Graph:
    def __init__(self, pick: Pick) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        self.labels: dict[str, str] = {}
        """What a node is doing, for whoever waits."""
        self.output = ""
        """The node whose images are the result."""
        self._pick = pick

    def add(self, kind: str, **inputs: Any) -> str:
        node = str(len(self.nodes) + 1)
        self.nodes[node] = {"class_type": kind, "inputs": inputs}
        return node

    def one(self, kind: str, **inputs: Any) -> Link:
        return [self.add(kind, **inputs), 0]

    def load(self, kind: str, wanted: str, **inputs: Any) -> str:
        field = LOADERS[kind]
        node = self.add(kind, **{field: self._pick(kind, field, wanted)}, **inputs)
        self.labels[node] = f"loading {wanted}"
        return node

    def sampling(self, kind: str, record: Record) -> dict[str, str]:
        sampler, scheduler = sampler_and_scheduler(record.sampler, record.scheduler)
        return {
            "sampler_name": self._pick(kind, "sampler_name", sampler),
            "scheduler": self._pick(kind, "scheduler", scheduler),
        }

    def show(self, image: Link) -> Graph:
        """A preview: the server keeps it as long as it runs, and its owner's folder stays clean."""
        self.output = self.add("PreviewImage", images=image)
        return self

    @property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys(node["class_type"] for node in self.nodes.values()))

    @property
    def models(self) -> list[str]:
        """Files that the graph reads: those of our loaders, and whatever else is named like one."""
        return [
            value
            for about in self.nodes.values()
            for field, value in about["inputs"].items()
            if isinstance(value, str)
            and (
                LOADERS.get(about["class_type"]) == field
                or (field.rstrip("0123456789").endswith("_name") and value.endswith(EXTENSIONS))
            )
        ]

    @property
    def checkpoints(self) -> set[str]:
        return {
            node
            for node, about in self.nodes.items()
            if any(field in about["inputs"] for field in CHECKPOINTS)
        }


class Loaded:
    """A checkpoint with its LoRAs, VAE and the two prompts."""

    def __init__(
        self, graph: Graph, record: Record, positive: str = "", negative: str = ""
    ) -> None:
        if not record.model:
            raise StageFailed(
                "bad_job", "The record names no model and ComfyUI has none of its own: set `model`."
            )
        checkpoint = graph.load("CheckpointLoaderSimple", record.model)
        model, clip, vae = ([checkpoint, slot] for slot in range(3))
        for lora in record.loras:
            strengths = {"strength_model": lora.weight, "strength_clip": lora.weight}
            node = graph.load("LoraLoader", lora.name, model=model, clip=clip, **strengths)
            model, clip = [node, 0], [node, 1]
        if record.clip_skip > 1:
            # Without this node each family of models has its own last layer: 1 means that.
            clip = graph.one("CLIPSetLastLayer", clip=clip, stop_at_clip_layer=-record.clip_skip)
        if key(record.vae) not in OWN_VAE:
            vae = [graph.load("VAELoader", record.vae), 0]
        self.model, self.clip, self.vae = model, clip, vae
        positive, negative = positive or record.positive, negative or record.negative
        self.positive = graph.one("CLIPTextEncode", clip=clip, text=positive)
        self.negative = graph.one("CLIPTextEncode", clip=clip, text=negative)


def txt2img(stage: Txt2Img, record: Record, seed: int, pick: Pick) -> Graph:
    graph = Graph(pick)
    base = Loaded(graph, record)
    size = (record.width, record.height)
    latent = graph.one("EmptyLatentImage", width=size[0], height=size[1], batch_size=1)
    if stage.refiner is None:
        latent = _sample(graph, base, record, latent, seed, record.steps, 1.0)
    else:
        latent = _refined(graph, base, record, latent, seed, stage.refiner)
    if stage.hires is not None:
        latent = _enlarged(graph, base, record, latent, stage.hires)
        steps = stage.hires.steps or record.steps
        latent = _sample(graph, base, record, latent, seed, steps, stage.hires.denoise)
        graph.labels[latent[0]] = "hires"
    return graph.show(graph.one("VAEDecode", samples=latent, vae=base.vae))


def img2img(stage: Img2Img, record: Record, seed: int, image: str, pick: Pick) -> Graph:
    graph = Graph(pick)
    base = Loaded(graph, record)
    pixels = graph.one("LoadImage", image=image)
    latent = graph.one("VAEEncode", pixels=pixels, vae=base.vae)
    steps = stage.steps or record.steps
    latent = _sample(graph, base, record, latent, seed, steps, stage.denoise)
    return graph.show(graph.one("VAEDecode", samples=latent, vae=base.vae))


def adetailer(stage: ADetailer, record: Record, seed: int, image: str, pick: Pick) -> Graph:
    """With the nodes of ComfyUI-Impact-Pack and its Subpack."""
    graph = Graph(pick)
    base = Loaded(graph, record, stage.positive, stage.negative)
    pixels = graph.one("LoadImage", image=image)
    detector = graph.load("UltralyticsDetectorProvider", stage.detector)
    detailed = graph.one(
        "FaceDetailer",
        image=pixels,
        model=base.model,
        clip=base.clip,
        vae=base.vae,
        positive=base.positive,
        negative=base.negative,
        bbox_detector=[detector, 0],
        seed=seed,
        steps=record.steps,
        cfg=record.cfg_scale,
        **graph.sampling("FaceDetailer", record),
        denoise=stage.denoise,
        bbox_threshold=stage.confidence,
        bbox_dilation=4,
        bbox_crop_factor=3.0,
        guide_size=512.0,
        guide_size_for=True,
        max_size=1024.0,
        feather=4,
        noise_mask=True,
        force_inpaint=True,
        drop_size=10,
        wildcard="",
        cycle=1,
        sam_detection_hint="none",
        sam_dilation=0,
        sam_threshold=0.93,
        sam_bbox_expansion=0,
        sam_mask_hint_threshold=0.7,
        sam_mask_hint_use_negative="False",
        inpaint_model=False,
        noise_mask_feather=0,
        tiled_encode=False,
        tiled_decode=False,
    )
    graph.labels[detailed[0]] = "details"
    return graph.show(detailed)


def upscale(stage: Upscale, record: Record, image: str, size: tuple[int, int], pick: Pick) -> Graph:
    graph = Graph(pick)
    if any(not isinstance(one, Upscale) for one in record.stages):
        # The server keeps what the last graph named, whether it was used or not: without these
        # loose nodes the next job of the same model would load that again.
        with suppress(StageFailed):
            Loaded(graph, record)
    pixels = graph.one("LoadImage", image=image)
    wanted = (times(size[0], stage.factor), times(size[1], stage.factor))
    return graph.show(_resized(graph, pixels, stage.upscaler, wanted))


def _sample(
    graph: Graph, base: Loaded, record: Record, latent: Link, seed: int, steps: int, denoise: float
) -> Link:
    return graph.one(
        "KSampler",
        model=base.model,
        positive=base.positive,
        negative=base.negative,
        latent_image=latent,
        seed=seed,
        steps=steps,
        cfg=record.cfg_scale,
        **graph.sampling("KSampler", record),
        denoise=denoise,
    )


def _refined(
    graph: Graph, base: Loaded, record: Record, latent: Link, seed: int, refiner: Refiner
) -> Link:
    """The first steps by the base, the others by the refiner, on one schedule of noise."""
    switch = min(round(record.steps * refiner.switch_at), record.steps)
    if switch == record.steps:
        return _sample(graph, base, record, latent, seed, record.steps, 1.0)
    checkpoint = graph.load("CheckpointLoaderSimple", refiner.model)
    clip = [checkpoint, 1]
    second = {
        "model": [checkpoint, 0],
        "positive": graph.one("CLIPTextEncode", clip=clip, text=record.positive),
        "negative": graph.one("CLIPTextEncode", clip=clip, text=record.negative),
    }
    first = {"model": base.model, "positive": base.positive, "negative": base.negative}
    alike = {
        "noise_seed": seed,
        "steps": record.steps,
        "cfg": record.cfg_scale,
        **graph.sampling("KSamplerAdvanced", record),
    }
    if switch > 0:
        begin = {"start_at_step": 0, "end_at_step": switch}
        noise = {"add_noise": "enable", "return_with_leftover_noise": "enable"}
        latent = graph.one(
            "KSamplerAdvanced", **first, latent_image=latent, **alike, **begin, **noise
        )
    end = {"start_at_step": switch, "end_at_step": record.steps}
    noise = {
        "add_noise": "disable" if switch else "enable",
        "return_with_leftover_noise": "disable",
    }
    latent = graph.one("KSamplerAdvanced", **second, latent_image=latent, **alike, **end, **noise)
    graph.labels[latent[0]] = "refiner"
    return latent


def _enlarged(graph: Graph, base: Loaded, record: Record, latent: Link, hires: Hires) -> Link:
    wide, tall = (times(side, hires.factor, 8) for side in (record.width, record.height))
    method = LATENT_RESIZES.get(key(hires.upscaler))
    if method is not None:
        return graph.one(
            "LatentUpscale",
            samples=latent,
            upscale_method=method,
            width=wide,
            height=tall,
            crop="disabled",
        )
    pixels = graph.one("VAEDecode", samples=latent, vae=base.vae)
    pixels = _resized(graph, pixels, hires.upscaler, (wide, tall))
    return graph.one("VAEEncode", pixels=pixels, vae=base.vae)


def _resized(graph: Graph, pixels: Link, upscaler: str, size: tuple[int, int]) -> Link:
    method = RESIZES.get(key(upscaler))
    if method is None:
        # A model enlarges by a factor of its own; the rest of the way is plain resizing.
        model = graph.load("UpscaleModelLoader", upscaler)
        pixels = graph.one("ImageUpscaleWithModel", upscale_model=[model, 0], image=pixels)
        method = "lanczos"
    return graph.one(
        "ImageScale",
        image=pixels,
        upscale_method=method,
        width=size[0],
        height=size[1],
        crop="disabled",
    )


def rendered_anew(nodes: dict[str, dict[str, Any]], mark: str) -> dict[str, dict[str, Any]]:
    """A graph that ComfyUI has just executed is answered from its cache, in no time and without a
    look at its card: no pixels to compare, no pace to learn. An input that no node reads makes it
    another graph, from where the noise comes in, or the image; models stay loaded."""
    begins = [node for node, one in nodes.items() if any(name in one["inputs"] for name in SEEDS)]
    begins = begins or [node for node, one in nodes.items() if one["class_type"] in RESIZERS]
    return {
        node: {**one, "inputs": {**one["inputs"], MARK: mark}} if node in begins else one
        for node, one in nodes.items()
    }
