"""The names of samplers, schedulers and model files, as people write them and as ComfyUI does."""

from __future__ import annotations

import re
from collections.abc import Sequence

from corral.runtime.pipeline.backend import automatic, key

EXTENSIONS = (".safetensors", ".sft", ".ckpt", ".pt", ".pt2", ".pth", ".bin", ".gguf", ".onnx")
SAMPLERS = {
    "": "euler",
    "eulera": "euler_ancestral",
    "dpm2a": "dpm_2_ancestral",
    "dpmpp2sa": "dpmpp_2s_ancestral",
}
SCHEDULERS = {"uniform": "normal", "ddim": "ddim_uniform"}
SUFFIXES = ("karras", "exponential", "sgmuniform", "simple", "beta")
"""Schedulers that may stand at the end of a sampler's name: `DPM++ 2M Karras`."""
OWN_VAE = ("", "none", "automatic")
"""What WebUI's users call the VAE that is in the checkpoint."""
RESIZES = {
    "lanczos": "lanczos",
    "nearest": "nearest-exact",
    "nearestexact": "nearest-exact",
    "bilinear": "bilinear",
    "bicubic": "bicubic",
    "area": "area",
}
"""Ways to enlarge an image without a model."""
LATENT_RESIZES = {
    "latent": "bilinear",
    "latentbilinear": "bilinear",
    "latentbicubic": "bicubic",
    "latentnearest": "nearest-exact",
    "latentnearestexact": "nearest-exact",
    "latentarea": "area",
    "latentbislerp": "bislerp",
}


def sampler_and_scheduler(sampler: str, scheduler: str) -> tuple[str, str]:
    """Both as ComfyUI spells them, as far as we know it; others are left as they are."""
    found, ending = key(sampler.removeprefix("k_")), ""
    for suffix in SUFFIXES:
        if found.endswith(suffix) and found != suffix:
            found, ending = found.removesuffix(suffix), suffix
    known = SAMPLERS.get(found, found)
    wanted = key(scheduler) or ending
    if wanted in ("", "automatic"):
        return known, automatic(known)
    return known, SCHEDULERS.get(wanted, wanted)


def by_key(wanted: str, offered: Sequence[str]) -> str | None:
    if wanted in offered:
        return wanted
    return next((name for name in offered if key(name) == key(wanted)), None)


def files_like(wanted: str, offered: Sequence[str]) -> list[str]:
    """The files that a name may mean: one is what we want, several are one too many.

    A record says `sdxl`, `sdxl.safetensors` or `sdxl.safetensors [0123abcd]`; a server has it in a
    folder of its own, with the separators of its system.
    """
    if wanted in offered:
        return [wanted]
    asked = _plain(wanted)
    same = [name for name in offered if _plain(name) == asked]
    if same:
        return same
    last = asked.rsplit("/", 1)[-1]
    return [name for name in offered if _plain(name).rsplit("/", 1)[-1] == last]


def _plain(name: str) -> str:
    name = re.sub(r"\s*\[[0-9a-fA-F]{6,64}\]$", "", name).replace("\\", "/").lower()
    for extension in EXTENSIONS:
        name = name.removesuffix(extension)
    return name
