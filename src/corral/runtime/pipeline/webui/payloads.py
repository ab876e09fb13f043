"""Requests that leave nothing to the server: whatever decides a pixel is in them."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from PIL.Image import Image

from corral.core.images.pipeline import ADetailer, Img2Img, Record, Stage, Txt2Img, Upscale
from corral.runtime.pipeline.backend import StageFailed, seed_of, times
from corral.runtime.pipeline.images import to_png
from corral.runtime.pipeline.webui.stock import ServerModel, ServerStock, Word

SAMPLER = "Euler"
"""Where the record names none."""
MOST_IMAGES = 8
MOST_PIXELS = 16 * 1024 * 1024
"""Of one request. A server takes a hundred thousand images too, and dies of them."""
MOST_UPSCALED = 128 * 1024 * 1024
STEPPED = ("DDIM", "DDIM CFG++", "PLMS", "UniPC")
"""Samplers whose eta is 0 unless somebody says otherwise; that of all others is 1."""
DISTILLED = 3.5
"""What Flux has for a cfg scale, in Forge."""
LORA = re.compile(r"<lora:([^:>]+)((?::[^>]*)?)>")
LORAS_TOLD = "lora_add_hashes_to_infotext"
"""With this setting, the answer names the LoRAs that were loaded."""

FIXED: dict[str, Any] = {
    "randn_source": "CPU",
    "eta_noise_seed_delta": 0,
    "samples_format": "png",
    # What a prompt means.
    "enable_prompt_comments": False,
    "enable_emphasis": True,
    "emphasis": "Original",
    "comma_padding_backtrack": 20,
    "sd_hypernetwork": "None",
    "sd_lora": "None",
    "extra_networks_default_multiplier": 1.0,
    LORAS_TOLD: True,
    # How it is sampled.
    "k_sched_type": "Automatic",
    "sigma_min": 0.0,
    "sigma_max": 0.0,
    "rho": 0.0,
    "always_discard_next_to_last_sigma": False,
    "enable_quantization": False,
    "enable_batch_seeds": True,
    "skip_early_cond": 0.0,
    "s_min_uncond_all": False,
    "pad_cond_uncond": False,
    "pad_cond_uncond_v0": False,
    "token_merging_ratio": 0.0,
    "token_merging_ratio_img2img": 0.0,
    "token_merging_ratio_hr": 0.0,
    "sdxl_crop_top": 0,
    "sdxl_crop_left": 0,
    "refiner_switch_by_sample_steps": False,
    "hires_fix_refiner_pass": "second pass",
    "hires_fix_use_firstpass_conds": False,
    # As releases of long ago did it.
    "use_old_emphasis_implementation": False,
    "use_old_karras_scheduler_sigmas": False,
    "use_old_hires_fix_width_height": False,
    "use_old_scheduling": False,
    "use_downcasted_alpha_bar": False,
    "no_dpmpp_sde_batch_determinism": False,
    "dont_fix_second_order_samplers_schedule": False,
    # From pixels, and to pixels.
    "sd_vae_overrides_per_model_preferences": True,
    "sd_vae_encode_method": "Full",
    "sd_vae_decode_method": "Full",
    "img2img_fix_steps": False,
    "img2img_color_correction": False,
    "img2img_extra_noise": 0.0,
    "img2img_background_color": "#ffffff",
    "initial_noise_multiplier": 1.0,
    "ad_bbox_sortby": "None",
    "ad_same_seed_for_each_tab": False,
    # No pixel, but time, and for some models a file that it would fetch first.
    "live_previews_enable": False,
}
"""Settings of a server that decide pixels, and no record has a word for: as they are on a new one,
but for the first. They come before the VAE, which is chosen by one of them."""
MODULES = "forge_additional_modules"
"""Forge's setting for its VAE, and for text encoders that a model is without."""
OVERRIDDEN = (*FIXED, "sd_model_checkpoint", "sd_vae", MODULES, "CLIP_stop_at_last_layers")


class Look(Struct, frozen=True):
    """A record in the server's own words."""

    model: ServerModel
    vae: str
    modules: tuple[str, ...]
    """Instead of a VAE, at a Forge."""
    sampler: Word
    schedule: Word
    prompt: str
    negative: str
    detail: str
    """The prompt for what ADetailer finds, where it is another one."""
    clip_skip: int
    loras: tuple[str, ...]
    refiner: ServerModel | None
    settings: frozenset[str]
    """Those that the server knows: an unknown one is an error to it."""

    @property
    def overrides(self) -> dict[str, Any]:
        wanted = {
            **FIXED,
            "sd_model_checkpoint": self.model.title,
            "sd_vae": self.vae,
            MODULES: list(self.modules),
            "CLIP_stop_at_last_layers": self.clip_skip,
        }
        return {name: value for name, value in wanted.items() if name in self.settings}


def look_of(stage: Stage, record: Record, stock: ServerStock, settings: frozenset[str]) -> Look:
    """Raises `model_missing` for what the server does not have."""
    if not record.model:
        raise StageFailed(
            "bad_job", "The record names no model, and whichever is loaded is nobody's choice."
        )
    for name, said, usual in (
        ("sd_vae", record.vae, ""),
        ("CLIP_stop_at_last_layers", record.clip_skip, 1),
    ):
        if said != usual and name not in settings and (name != "sd_vae" or MODULES not in settings):
            raise StageFailed("stage_missing", f"This WebUI has no setting {name}.")
    loras: list[str] = []

    def tag(name: str, weight: str) -> str:
        loras.append(stock.lora(name))
        return f"<lora:{loras[-1]}{weight}>"

    def spelled(prompt: str) -> str:
        """The server passes over a tag in any spelling but its own, without a word."""
        return LORA.sub(lambda found: tag(found[1], found[2]), prompt)

    positive = spelled(record.positive)
    tags = [tag(lora.name, f":{lora.weight:g}") for lora in record.loras]
    detail = ""
    if isinstance(stage, ADetailer) and stage.positive:
        loras.clear()  # the answer tells those of the last prompt that had any
        detail = spelled(stage.positive)
    refiner = stage.refiner if isinstance(stage, Txt2Img) else None
    sampler, schedule = stock.drawn_by(record.sampler or SAMPLER, record.scheduler)
    return Look(
        model=stock.model(record.model),
        vae="None" if MODULES in settings else stock.vae(record.vae),
        modules=stock.modules(record.vae) if MODULES in settings else (),
        sampler=sampler,
        schedule=schedule,
        prompt=" ".join((positive, *tags)) if tags else positive,
        negative=record.negative,
        detail=detail,
        clip_skip=record.clip_skip,
        loras=tuple(loras),
        refiner=stock.model(refiner.model) if refiner is not None else None,
        settings=settings,
    )


def slices(record: Record, pixels: int) -> list[list[int]]:
    """The seeds of each request. The same on every worker: how many images share a pass shows in
    their last bits."""
    most = max(1, min(MOST_IMAGES, MOST_PIXELS // max(pixels, 1)))
    cut: list[list[int]] = [[]]
    for place in range(record.batch_size):
        seed = seed_of(record, place)
        if len(cut[-1]) == most or (cut[-1] and seed == 0):  # the server does not begin anew at 0
            cut.append([])
        cut[-1].append(seed)
    return cut


def _closed(
    record: Record, look: Look, seeds: Sequence[int], size: tuple[int, int]
) -> dict[str, Any]:
    return {
        "prompt": look.prompt,
        "negative_prompt": look.negative,
        "styles": [],
        "seed": seeds[0],
        "subseed": 0,
        "subseed_strength": 0.0,
        "seed_resize_from_w": 0,
        "seed_resize_from_h": 0,
        "sampler_name": look.sampler.name,
        "scheduler": look.schedule.name,
        "steps": record.steps,
        "cfg_scale": record.cfg_scale,
        "distilled_cfg_scale": DISTILLED,
        "width": size[0],
        "height": size[1],
        "batch_size": len(seeds),
        "n_iter": 1,
        "restore_faces": False,
        "tiling": False,
        "eta": 0.0 if look.sampler.name in STEPPED else 1.0,
        "s_churn": 0.0,
        "s_tmin": 0.0,
        "s_tmax": 0.0,
        "s_noise": 1.0,
        "s_min_uncond": 0.0,
        "do_not_save_samples": True,
        "do_not_save_grid": True,
        "save_images": False,
        "send_images": True,
        "script_name": None,
        "script_args": [],
        "alwayson_scripts": {},
        "override_settings": look.overrides,
        "override_settings_restore_afterwards": True,
    }


def txt2img(
    stage: Txt2Img, record: Record, look: Look, seeds: Sequence[int], stock: ServerStock
) -> dict[str, Any]:
    body = _closed(record, look, seeds, (record.width, record.height))
    body["enable_hr"] = stage.hires is not None
    if stage.hires is not None:
        body |= {
            "hr_scale": stage.hires.factor,
            "hr_upscaler": stock.upscaler(stage.hires.upscaler, latent=True),
            "hr_second_pass_steps": stage.hires.steps,
            "denoising_strength": stage.hires.denoise,
            "hr_resize_x": 0,
            "hr_resize_y": 0,
            "hr_checkpoint_name": None,
            "hr_sampler_name": None,
            "hr_scheduler": None,
            "hr_prompt": "",
            "hr_negative_prompt": "",
            # Forge fails without the first, and has a cfg scale of 1 without the second.
            "hr_additional_modules": ["Use same choices"],
            "hr_cfg": record.cfg_scale,
            "hr_distilled_cfg": DISTILLED,
        }
    if stage.refiner is not None and look.refiner is not None:
        body["refiner_checkpoint"] = look.refiner.title
        body["refiner_switch_at"] = stage.refiner.switch_at
    return body


def img2img(
    stage: Img2Img | ADetailer,
    record: Record,
    look: Look,
    seed: int,
    image: Image,
    size: tuple[int, int],
) -> dict[str, Any]:
    body = _closed(record, look, [seed], size)
    body |= {
        "init_images": [encoded(image)],
        "resize_mode": 0,
        "denoising_strength": stage.denoise,
        "initial_noise_multiplier": 1.0,
        "include_init_images": False,
    }
    if isinstance(stage, Img2Img):
        body["steps"] = stage.steps or record.steps
        return body
    found = {
        "ad_model": stage.detector,
        "ad_prompt": look.detail,
        "ad_negative_prompt": stage.negative,
        "ad_confidence": stage.confidence,
        "ad_denoising_strength": stage.denoise,
        "ad_dilate_erode": 4,
        "ad_mask_blur": 4,
        "ad_x_offset": 0,
        "ad_y_offset": 0,
        "ad_mask_merge_invert": "None",
        "ad_inpaint_only_masked": True,
        "ad_inpaint_only_masked_padding": 32,
    }
    # On, without an img2img of the whole image, and with one detector.
    body["alwayson_scripts"] = {"ADetailer": {"args": [True, True, found]}}
    return body


def upscale(stage: Upscale, image: Image, stock: ServerStock) -> dict[str, Any]:
    wide, tall = grown(image.size, stage.factor)
    if wide * tall > MOST_UPSCALED:
        raise StageFailed(
            "bad_job",
            f"{wide}x{tall} is more than the {MOST_UPSCALED >> 20} megapixels that one image may "
            "have. Upscale by less.",
        )
    return {
        "image": encoded(image),
        "resize_mode": 0,
        "upscaling_resize": stage.factor,
        "upscaler_1": stock.upscaler(stage.upscaler),
        "upscaler_2": "None",
        "extras_upscaler_2_visibility": 0.0,
        "upscale_first": False,
        "gfpgan_visibility": 0.0,
        "codeformer_visibility": 0.0,
        "codeformer_weight": 0.0,
        "show_extras_results": True,
    }


def grown(size: tuple[int, int], factor: float) -> tuple[int, int]:
    return times(size[0], factor), times(size[1], factor)


def encoded(image: Image) -> str:
    return base64.b64encode(to_png(image, compression=1)).decode()
