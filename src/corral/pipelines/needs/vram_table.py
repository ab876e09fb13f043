"""How much VRAM image jobs take, as data. Rough on purpose: too little moves a job to a bigger card
after its first try, too much keeps it from cards that would do."""

from __future__ import annotations

from msgspec import Struct


class Family(Struct, frozen=True):
    """Models of one build, known by parts of their names."""

    name: str
    words: tuple[str, ...]
    weights_gb: float
    per_megapixel_gb: float
    """Of each image in the batch, while it is sampled and decoded."""


class Table(Struct, frozen=True):
    families: tuple[Family, ...]
    """The first with a word that is in the model's name, in small letters, counts."""
    lora_gb: float
    detector_gb: float
    upscaler_gb: float
    upscaled_megapixel_gb: float
    """Of the larger image, where a model does the upscaling; it goes tile by tile."""
    resamplers: tuple[str, ...]
    """Upscalers that are no models and take no VRAM."""


TABLE = Table(
    families=(
        Family("flux, 4 bit", ("flux1-dev-bnb-nf4", "flux-nf4", "flux_nf4", "nf4"), 7.0, 1.5),
        Family(
            "flux, 8 bit", ("flux-fp8", "flux_fp8", "flux1-dev-fp8", "flux1-schnell-fp8"), 12.5, 1.5
        ),
        Family("flux", ("flux",), 23.0, 1.5),
        Family("sd3", ("sd3", "sd_3", "stable-diffusion-3"), 11.0, 1.5),
        Family("sdxl", ("sdxl", "sd_xl", "xl", "pony", "illustrious", "noobai"), 6.8, 2.0),
        Family("sd2", ("sd2", "sd_2", "v2-1", "v2-0", "stable-diffusion-2"), 2.8, 2.2),
        Family(
            "sd1", ("sd1", "sd_1", "sd-1", "v1-5", "v1-4", "1.5", "stable-diffusion-v1"), 2.4, 2.2
        ),
        Family("any other", ("",), 4.0, 2.2),
    ),
    lora_gb=0.2,
    detector_gb=0.5,
    upscaler_gb=0.5,
    upscaled_megapixel_gb=0.3,
    resamplers=("", "none", "lanczos", "nearest", "bicubic", "bilinear", "latent"),
)
