"""What the fake WebUI has (models, samplers, settings), and how it makes pixels of a request."""

from __future__ import annotations

import base64
import hashlib
import io
import random
from typing import Any

from PIL import Image as Images
from PIL import ImageChops
from PIL.Image import Image

Json = dict[str, Any]
TITLES = ("alpha.safetensors", "beta.safetensors", "deep/gamma.safetensors", "refine.safetensors")
VAES = ("soft.safetensors", "hard.pt")
SAMPLERS: list[Json] = [
    {"name": "DPM++ 2M", "aliases": ["k_dpmpp_2m"], "options": {"scheduler": "karras"}},
    {"name": "DPM++ SDE", "aliases": ["k_dpmpp_sde"], "options": {"scheduler": "karras"}},
    {"name": "Euler a", "aliases": ["k_euler_a", "k_euler_ancestral"], "options": {}},
    {"name": "Euler", "aliases": ["k_euler"], "options": {}},
    {"name": "DDIM", "aliases": ["ddim"], "options": {}},
]
OLD_SAMPLERS: list[Json] = [
    {"name": "DPM++ 2M Karras", "aliases": ["k_dpmpp_2m_ka"], "options": {"scheduler": "karras"}},
    {"name": "Euler a", "aliases": ["k_euler_a", "k_euler_ancestral"], "options": {}},
    {"name": "Euler", "aliases": ["k_euler"], "options": {}},
    {"name": "DPM++ 2M", "aliases": ["k_dpmpp_2m"], "options": {}},
]
"""Before 1.9, when a sampler's name had the schedule."""
SCHEDULES: list[Json] = [
    {"name": "automatic", "label": "Automatic", "aliases": None},
    {"name": "uniform", "label": "Uniform", "aliases": None},
    {"name": "karras", "label": "Karras", "aliases": None},
    {"name": "exponential", "label": "Exponential", "aliases": None},
    {"name": "sgm_uniform", "label": "SGM Uniform", "aliases": ["SGMUniform"]},
    {"name": "normal", "label": "Normal", "aliases": None},
]
UPSCALERS = ("None", "Lanczos", "Nearest", "R-ESRGAN 4x+", "ESRGAN_4x", "LDSR", "4x-Cut")
NOT_LOADED = {"ESRGAN_4x": "https://example.org/ESRGAN.pth", "LDSR": None, "4x-Cut": "/up/cut.pth"}
"""Upscalers that it lists all the same, by their files: one is still to be fetched, one has none,
one is damaged. It resizes plainly, logs that, and answers 200."""
LATENT = ("Latent", "Latent (nearest)")
LORAS = ("ink", "moody")
DETECTORS = ["face_yolov8n.pt", "hand_yolov8n.pt"]
DEFAULTS: Json = {
    "sd_model_checkpoint": None, "sd_vae": "Automatic", "CLIP_stop_at_last_layers": 1,
    "randn_source": "GPU", "eta_noise_seed_delta": 0, "samples_format": "png",
    "token_merging_ratio": 0.0, "token_merging_ratio_img2img": 0.0, "token_merging_ratio_hr": 0.0,
    "img2img_fix_steps": False, "img2img_color_correction": False, "jpeg_quality": 80,
    "initial_noise_multiplier": 1.0, "always_discard_next_to_last_sigma": False,
    "enable_prompt_comments": True, "lora_add_hashes_to_infotext": True,
    "sd_vae_overrides_per_model_preferences": True, "sd_lora": "None", "emphasis": "Original",
    "use_old_hires_fix_width_height": False,
}  # fmt: skip
FORGE: Json = {"forge_additional_modules": []}
"""Forge's own: its VAE and its text encoders."""
BITES = 1000
"""So many images of a batch kill the process."""


class Refusal(Exception):
    """An exception of the server: a status, and its kind and message in the body."""

    def __init__(self, status: int, kind: str, message: str, detail: str = "") -> None:
        self.status = status
        self.body = {"error": kind, "detail": detail, "body": "", "errors": message}


class Died(Exception):
    """The process is gone in the middle of a request."""


def digest_of(title: str) -> str:
    return hashlib.sha256(title.encode()).hexdigest()


def sampler_and_schedule(body: Json, old: bool) -> tuple[str, str]:
    name = body.get("sampler_name") or "Euler"
    if old:
        if name not in [one["name"] for one in OLD_SAMPLERS]:
            raise Refusal(404, "HTTPException", "", "Sampler not found")
        return name, ""
    sampler = next((one for one in SAMPLERS if one["name"] == name), SAMPLERS[0])
    asked = body.get("scheduler")
    found = next((one for one in SCHEDULES if asked in (one["name"], one["label"])), SCHEDULES[0])
    if sampler["options"].get("scheduler") == found["name"]:
        found = SCHEDULES[0]  # what the sampler does by itself is not named
    return str(sampler["name"]), str(found["label"])


def detail_of(body: Json) -> Json | None:
    """What ADetailer was asked to find, where it is switched on."""
    args = ((body.get("alwayson_scripts") or {}).get("ADetailer") or {}).get("args") or []
    found = next((arg for arg in args if isinstance(arg, dict)), None)
    return found if found is not None and args[0] is True else None


def decoded(data: str) -> Image:
    try:
        image = Images.open(io.BytesIO(base64.b64decode(data)))
        image.load()
    except Exception as error:
        raise Refusal(500, "HTTPException", "", "Invalid encoded image") from error
    return image.convert("RGB")


def drawn(size: tuple[int, int], look: list[Any]) -> Image:
    wide, tall = size
    dots = random.Random(repr(look)).randbytes(wide * tall // 64 * 3)
    return Images.frombytes("RGB", (wide // 8, tall // 8), dots).resize((wide, tall))


def blended(old: Image, new: Image, share: float, whole: bool) -> Image:
    if whole:
        return ImageChops.blend(old, new.resize(old.size), share)
    return ImageChops.blend(old.resize(new.size), new, share)


def grown(size: tuple[int, int], factor: float) -> tuple[int, int]:
    wide, tall = (int(side * factor) // 8 * 8 for side in size)
    return wide, tall
