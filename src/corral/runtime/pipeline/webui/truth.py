"""An answer held against its request. `parameters` in it only echoes; `info` is what was done."""

from __future__ import annotations

import base64
import io
import json
import math
import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from PIL import Image as Images
from PIL import ImageChops
from PIL.Image import Image

from corral.core.images.names import folded
from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.images import KINDS
from corral.runtime.pipeline.webui.payloads import LORAS_TOLD, MODULES, Look
from corral.runtime.pipeline.webui.stock import AUTOMATIC, Word, last

Info = dict[str, Any]
TAG = re.compile(r"<[a-z]+:[^>]*>", re.IGNORECASE)
"""Of a LoRA, or another network: some servers take them out of the prompt that they tell."""
MODULE = re.compile(r'(?:^|, )Module \d+: ("[^"]*"|[^,]+)')
SCHEDULE = re.compile(r"(?:^|, )Schedule type: ([^,]+)")


class Lossy(StageFailed):
    """Its user has chosen another format for files, since we looked."""

    def __init__(self, url: str, kind: str | None) -> None:
        super().__init__(
            "backend_mismatch",
            f"The WebUI at {url} sent {kind}, which loses pixels. Set its file format for images "
            "to png.",
        )


class Expected(Struct, frozen=True):
    """What an answer must say of itself."""

    look: Look
    seeds: Sequence[int]
    size: tuple[int, int]
    """Of the images."""
    base: tuple[int, int]
    """Of the first pass, which is what `info` calls the size."""
    steps: int
    cfg_scale: float
    detector: str = ""
    """ADetailer without img2img renders the rest in one step at 128x128, and `info` says so."""
    refined: bool = False
    """The refiner has steps left to it."""


def images_of(answer: Any, expected: Expected, url: str) -> tuple[list[Image], Info]:
    """The images and the truth about them; raises `backend_mismatch`."""
    info = _info(answer, url)
    first = int(info.get("index_of_first_image") or 0)
    sent = list(answer.get("images") or ())[first:]
    wrong = differences(info, expected)
    if len(sent) > len(expected.seeds) and info.get("all_seeds"):
        del sent[len(expected.seeds) :]  # an extension's own, behind ours: maps, masks, previews
    if len(sent) != len(expected.seeds):
        images = f"{len(sent)} image{'s' * (len(sent) != 1)}"
        wrong.append(f"{images}, not {len(expected.seeds)}")
    made = [decoded(data, url) for data in sent]
    wrong += sizes(made, expected.size)
    complain(wrong, url)
    return made, info


def sizes(made: Sequence[Image], wanted: tuple[int, int], within: int = 0) -> list[str]:
    others = sorted(
        image.size
        for image in made
        if any(abs(side - asked) > within for side, asked in zip(image.size, wanted, strict=True))
    )
    return [
        f"images of {wide}x{tall}, not {wanted[0]}x{wanted[1]}"
        for wide, tall in dict.fromkeys(others)
    ]


def complain(wrong: Sequence[str], url: str) -> None:
    if wrong:
        raise StageFailed(
            "backend_mismatch",
            f"The WebUI at {url} rendered something else than it was asked for: "
            f"{'; '.join(wrong)}. Look into its log and its settings.",
        )


def differences(info: Info, expected: Expected) -> list[str]:
    look = expected.look
    wrong = _model(info, look) + _vae(info, look) + _extras(info, expected)
    if "CLIP_stop_at_last_layers" in look.settings:
        wrong += _differs("clip skip", info.get("clip_skip"), look.clip_skip)
    seeds = info.get("all_seeds")
    if seeds is not None:
        wrong += _differs("seeds", list(seeds), list(expected.seeds))
    for name, key, sent in (
        ("prompt", "all_prompts", look.prompt),
        ("negative prompt", "all_negative_prompts", look.negative),
    ):
        told = info.get(key)
        same = (_words(sent), _words(TAG.sub(" ", sent)))
        if told and any(_words(one) not in same for one in told):
            wrong.append(f"another {name} ({told[0]!r:.200})")
    if expected.detector:
        return wrong
    sampler = str(info.get("sampler_name") or "")
    if folded(sampler) not in look.sampler.others:
        wrong.append(f"sampler {sampler or 'unknown'}, not {look.sampler.name}")
    told = schedule_of(info)
    if not _same_schedule(told, look.schedule, look.sampler):
        wrong.append(f"schedule {told or AUTOMATIC}, not {look.schedule.name}")
    size = (info.get("width"), info.get("height"))
    if None not in size:
        wrong += _differs("size", size, expected.base)
    if info.get("steps") is not None:
        wrong += _differs("steps", info["steps"], expected.steps)
    if info.get("cfg_scale") is not None:
        told = float(info["cfg_scale"])
        if not math.isclose(told, expected.cfg_scale, rel_tol=1e-6, abs_tol=1e-6):
            wrong.append(f"cfg scale {told:g}, not {expected.cfg_scale:g}")
    return wrong


def schedule_of(info: Info) -> str:
    """Only infotexts have it where it was left to the sampler."""
    told = (info.get("extra_generation_params") or {}).get("Schedule type")
    if told:
        return str(told)
    found = SCHEDULE.search(_told(info))
    return found[1].strip() if found else ""


def decoded(data: str, url: str) -> Image:
    try:
        held = io.BytesIO(base64.b64decode(data.rsplit(",", 1)[-1]))
        image = Images.open(held, formats=KINDS)
        image.load()
    except (OSError, ValueError, SyntaxError, Images.DecompressionBombError) as error:
        raise StageFailed(
            "backend_mismatch", f"The WebUI at {url} sent something that is no image: {error}."
        ) from error
    if image.format != "PNG":
        raise Lossy(url, image.format)
    image.info.clear()
    return image


def is_resized(image: Image, made: Image) -> bool:
    """Whether this is what is left of an upscaler that could not be loaded. Of an image that is
    all of one colour nobody can say, and one that gets no larger is only resized anyway."""
    image, made = image.convert("RGB"), made.convert("RGB")
    if made.width <= image.width or all(low == high for low, high in _extremes(image)):
        return False
    plainly = image.resize(made.size, Images.Resampling.LANCZOS)
    return all(high <= 1 for _, high in _extremes(ImageChops.difference(plainly, made)))


def _extremes(image: Image) -> list[tuple[int, int]]:
    """By channel."""
    return [band.getextrema() for band in image.split()]  # type: ignore[misc]


def _told(info: Info) -> str:
    """The settings in the text that goes with an image."""
    texts = info.get("infotexts") or [""]
    return str(texts[-1]).rsplit("\n", 1)[-1]


def _info(answer: Any, url: str) -> Info:
    try:
        found = json.loads(answer["info"])
    except (KeyError, TypeError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise StageFailed("backend_mismatch", f"The WebUI at {url} does not say what it rendered.")
    return found


def _model(info: Info, look: Look) -> list[str]:
    name, digest = str(info.get("sd_model_name") or ""), str(info.get("sd_model_hash") or "")
    if look.model.is_called(name, digest):
        return []
    told = f"{name} [{digest}]" if digest else name
    return [f"model {told or 'unknown'}, not {look.model.title}"]


def _vae(info: Info, look: Look) -> list[str]:
    if MODULES in look.settings:
        loaded = {last(name.strip('"')) for name in MODULE.findall(_told(info))}
        asked = {last(name) for name in look.modules}
        wrong = [f"no module {name}" for name in sorted(asked - loaded)]
        return wrong + [f"the module {name}" for name in sorted(loaded - asked)]
    if "sd_vae" not in look.settings:
        return []
    told, wanted = str(info.get("sd_vae_name") or "None"), look.vae
    return [] if last(told) == last(wanted) else [f"VAE {told}, not {wanted}"]


def _extras(info: Info, expected: Expected) -> list[str]:
    extras, look, wrong = info.get("extra_generation_params") or {}, expected.look, []
    if expected.detector:
        wrong += _differs("detector", extras.get("ADetailer model"), expected.detector)
    elif extras.get("ADetailer model"):
        wrong.append("ADetailer, for which nobody asked")
    if look.refiner is not None and expected.refined:
        told = str(extras.get("Refiner") or "")
        digest = re.search(r"\[([0-9a-f]+)\]$", told)
        if not look.refiner.is_called(told, digest[1] if digest else ""):
            wrong.append(f"refiner {told or 'none'}, not {look.refiner.title}")
    return wrong + _loras(info, look)


def _loras(info: Info, look: Look) -> list[str]:
    if not info.get("sd_model_hash"):
        return []  # a server that does not hash does not tell all of them
    told = (info.get("extra_generation_params") or {}).get("Lora hashes")
    if told is None and LORAS_TOLD not in look.settings:
        return []
    loaded = {part.split(":", 1)[0].strip() for part in str(told or "").split(",")}
    without = str.maketrans("", "", ":,")  # which the list has between its entries
    return [f"no LoRA {name}" for name in look.loras if name.translate(without) not in loaded]


def _same_schedule(told: str, wanted: Word, sampler: Word) -> bool:
    own = folded(sampler.schedule)
    if folded(told or AUTOMATIC) == folded(AUTOMATIC):
        return folded(AUTOMATIC) in wanted.others or (bool(own) and own in wanted.others)
    if folded(AUTOMATIC) in wanted.others:
        return folded(told) == own
    return folded(told) in wanted.others


def _differs(name: str, told: Any, wanted: Any) -> list[str]:
    if isinstance(told, tuple):
        told, wanted = (f"{wide}x{tall}" for wide, tall in (told, wanted))
    return [] if told == wanted else [f"{name} {told}, not {wanted}"]


def _words(text: Any) -> list[str]:
    """What a prompt says: servers and extensions set spaces, lines and commas their own way."""
    return [word for word in re.split(r"[\s,]+", str(text)) if word]
