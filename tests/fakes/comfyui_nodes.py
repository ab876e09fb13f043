"""Nodes of the fake ComfyUI: described as /object_info does, and small deterministic images."""

from __future__ import annotations

import hashlib
import io
from typing import Any

from PIL import Image as Images
from PIL.Image import Image, Resampling

SAMPLERS = [
    "euler", "euler_ancestral", "heun", "dpm_2", "dpm_2_ancestral", "lms", "dpmpp_2s_ancestral",
    "dpmpp_sde", "dpmpp_2m", "dpmpp_2m_sde", "dpmpp_3m_sde", "ddim", "uni_pc",
]  # fmt: skip
SCHEDULERS = [
    "simple", "sgm_uniform", "karras", "exponential", "ddim_uniform", "beta", "normal",
]  # fmt: skip
LINKS = {"MODEL", "CLIP", "VAE", "CONDITIONING", "LATENT", "IMAGE", "UPSCALE_MODEL",
         "BBOX_DETECTOR"}  # fmt: skip
SEED: list[Any] = ["INT", {"min": 0, "max": 2**64 - 1}]
SIDE: list[Any] = ["INT", {"min": 0, "max": 16384}]
UNIT: list[Any] = ["FLOAT", {"min": 0.0, "max": 1.0}]


def described(files: dict[str, list[str]], packs: bool) -> dict[str, Any]:
    sampling = {"sampler_name": [SAMPLERS], "scheduler": [SCHEDULERS]}
    common = {
        "steps": ["INT", {"min": 1, "max": 10000}],
        "cfg": ["FLOAT", {"min": 0.0, "max": 100.0}],
        **sampling,
        "positive": ["CONDITIONING"],
        "negative": ["CONDITIONING"],
    }
    methods = [["nearest-exact", "bilinear", "area", "bicubic", "lanczos"]]
    crop = [["disabled", "center"]]
    one: dict[str, Any] = {
        "CheckpointLoaderSimple": (
            {"ckpt_name": [files["checkpoints"], {"tooltip": "The model."}]},
            ["MODEL", "CLIP", "VAE"],
        ),
        "VAELoader": ({"vae_name": [files["vae"]]}, ["VAE"]),
        "LoraLoader": (
            {
                "model": ["MODEL"], "clip": ["CLIP"], "lora_name": [files["loras"]],
                "strength_model": ["FLOAT", {"min": -100.0, "max": 100.0}],
                "strength_clip": ["FLOAT", {"min": -100.0, "max": 100.0}],
            },
            ["MODEL", "CLIP"],
        ),
        "CLIPSetLastLayer": (
            {"clip": ["CLIP"], "stop_at_clip_layer": ["INT", {"min": -24, "max": -1}]},
            ["CLIP"],
        ),
        "CLIPTextEncode": ({"text": ["STRING", {}], "clip": ["CLIP"]}, ["CONDITIONING"]),
        "EmptyLatentImage": (
            {"width": ["INT", {"min": 16, "max": 16384}],
             "height": ["INT", {"min": 16, "max": 16384}],
             "batch_size": ["INT", {"min": 1, "max": 4096}]},
            ["LATENT"],
        ),
        "KSampler": (
            {"model": ["MODEL"], "seed": SEED, **common, "latent_image": ["LATENT"],
             "denoise": UNIT},
            ["LATENT"],
        ),
        "KSamplerAdvanced": (
            {"model": ["MODEL"], "add_noise": [["enable", "disable"]], "noise_seed": SEED,
             **common, "latent_image": ["LATENT"],
             "start_at_step": ["INT", {"min": 0, "max": 10000}],
             "end_at_step": ["INT", {"min": 0, "max": 10000}],
             "return_with_leftover_noise": [["disable", "enable"]]},
            ["LATENT"],
        ),
        "VAEDecode": ({"samples": ["LATENT"], "vae": ["VAE"]}, ["IMAGE"]),
        "VAEEncode": ({"pixels": ["IMAGE"], "vae": ["VAE"]}, ["LATENT"]),
        "LatentUpscale": (
            {"samples": ["LATENT"],
             "upscale_method": [["nearest-exact", "bilinear", "area", "bicubic", "bislerp"]],
             "width": SIDE, "height": SIDE, "crop": crop},
            ["LATENT"],
        ),
        "LoadImage": ({"image": [[], {"image_upload": True}]}, ["IMAGE", "MASK"]),
        "ImageScale": (
            {"image": ["IMAGE"], "upscale_method": methods, "width": SIDE, "height": SIDE,
             "crop": crop},
            ["IMAGE"],
        ),
        # Newer nodes say what they take under `options`.
        "UpscaleModelLoader": (
            {"model_name": ["COMBO", {"multiselect": False, "options": files["upscale_models"]}]},
            ["UPSCALE_MODEL"],
        ),
        "ImageUpscaleWithModel": (
            {"upscale_model": ["UPSCALE_MODEL"], "image": ["IMAGE"]}, ["IMAGE"],
        ),
        "SaveImage": ({"images": ["IMAGE"], "filename_prefix": ["STRING", {}]}, []),
        "PreviewImage": ({"images": ["IMAGE"]}, []),
        "SaveImageWebsocket": ({"images": ["IMAGE"]}, []),
        "UNETLoader": (
            {"unet_name": [files["diffusion_models"]],
             "weight_dtype": [["default", "fp8_e4m3fn"]]},
            ["MODEL"],
        ),
        # Of a pack: another way to read a model.
        "UnetLoaderGGUF": ({"unet_name": [files["unet_gguf"]]}, ["MODEL"]),
    }  # fmt: skip
    if packs:
        one["UltralyticsDetectorProvider"] = (
            {"model_name": [files["ultralytics"]]}, ["BBOX_DETECTOR", "SEGM_DETECTOR"],
        )  # fmt: skip
        flag: list[Any] = ["BOOLEAN", {"default": True}]
        one["FaceDetailer"] = (
            {"image": ["IMAGE"], "model": ["MODEL"], "clip": ["CLIP"], "vae": ["VAE"],
             "guide_size": ["FLOAT", {"min": 64, "max": 16384}], "guide_size_for": flag,
             "max_size": ["FLOAT", {"min": 64, "max": 16384}], "seed": SEED, **common,
             "denoise": ["FLOAT", {"min": 0.0001, "max": 1.0}],
             "feather": ["INT", {"min": 0, "max": 100}], "noise_mask": flag,
             "force_inpaint": flag, "bbox_threshold": UNIT,
             "bbox_dilation": ["INT", {"min": -512, "max": 512}],
             "bbox_crop_factor": ["FLOAT", {"min": 1.0, "max": 10}],
             "sam_detection_hint": [["center-1", "mask-area", "none"]],
             "sam_dilation": ["INT", {"min": -512, "max": 512}], "sam_threshold": UNIT,
             "sam_bbox_expansion": ["INT", {"min": 0, "max": 1000}],
             "sam_mask_hint_threshold": UNIT,
             "sam_mask_hint_use_negative": [["False", "Small", "Outter"]],
             "drop_size": ["INT", {"min": 1, "max": 16384}],
             "bbox_detector": ["BBOX_DETECTOR"], "wildcard": ["STRING", {"multiline": True}],
             "cycle": ["INT", {"min": 1, "max": 10}]},
            ["IMAGE", "IMAGE", "IMAGE", "MASK", "DETAILER_PIPE", "IMAGE"],
        )  # fmt: skip
    return {
        name: {
            "input": {"required": inputs},
            "input_order": {"required": list(inputs)},
            "output": outputs,
            "name": name,
            "output_node": name in ("SaveImage", "PreviewImage", "SaveImageWebsocket"),
        }
        for name, (inputs, outputs) in one.items()
    }


def options(described_as: list[Any]) -> list[str] | None:
    if isinstance(described_as[0], list):
        return list(described_as[0])
    if described_as[0] == "COMBO":
        return list(described_as[1]["options"])
    return None


def picture(key: str, size: tuple[int, int]) -> Image:
    """Other pixels for another key."""
    raw = hashlib.shake_256(key.encode()).digest(8 * 8 * 3)
    return Images.frombytes("RGB", (8, 8), raw).resize(size, Resampling.NEAREST)


def png(image: Image) -> bytes:
    held = io.BytesIO()
    image.save(held, "PNG", compress_level=1)
    return held.getvalue()


def outputs_of(kind: str, key: str, inputs: dict[str, Any], loaded: Image | None) -> list[Any]:
    """What a node gives, from its inputs with all links resolved. A latent is its key and size."""
    match kind:
        case "EmptyLatentImage":
            return [(key, (inputs["width"], inputs["height"]))]
        case "KSampler" | "KSamplerAdvanced":
            return [(key, inputs["latent_image"][1])]
        case "LatentUpscale":
            return [(key, (inputs["width"], inputs["height"]))]
        case "VAEEncode":
            return [(key, tuple(side // 8 * 8 for side in inputs["pixels"].size))]
        case "VAEDecode":
            return [picture(key, inputs["samples"][1])]
        case "LoadImage":
            return [loaded, None]
        case "ImageScale":
            size = (inputs["width"], inputs["height"])
            return [inputs["image"].resize(size, Resampling.NEAREST)]
        case "ImageUpscaleWithModel":
            image = inputs["image"]
            return [image.resize((image.width * 4, image.height * 4), Resampling.NEAREST)]
        case "FaceDetailer":
            return [picture(key, inputs["image"].size)]
        case _:
            return [f"{key}/{slot}" for slot in range(3)]
