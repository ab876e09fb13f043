"""The backend that needs no model: it draws what the words of a prompt suggest.

Its images are the same on every machine for the same record and seed, and visibly different for
another one, so that everything around a backend can be tried, shown and tested without a GPU.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from PIL import Image as Images
from PIL import ImageChops
from PIL.Image import Image

from corral.core.images.pipeline import (
    MOST_AT_ONCE,
    MOST_PIXELS,
    ADetailer,
    Img2Img,
    Record,
    Stage,
    Txt2Img,
    Upscale,
)
from corral.runtime.pipeline.backend import (
    Rendered,
    StageFailed,
    Tell,
    seed_of,
    stop_if_cancelled,
    times,
)
from corral.runtime.pipeline.canvas import Canvas, Colour, Dice, enlarged, mixed

VERSION = "1"
"""Another one draws other pixels."""
LOOK_S = 0.05
MAX_COLOURS = 8
"""Colours that a prompt gives, at most."""

COLOURS: dict[str, Colour] = {
    "red": (200, 44, 48), "crimson": (170, 22, 60), "orange": (232, 130, 40),
    "gold": (226, 180, 60), "yellow": (240, 214, 84), "green": (60, 150, 78),
    "forest": (34, 92, 56), "blue": (48, 96, 190), "sea": (28, 110, 140), "water": (40, 120, 170),
    "sky": (132, 186, 232), "purple": (112, 62, 150), "pink": (232, 140, 170),
    "white": (240, 240, 236), "snow": (226, 236, 244), "grey": (128, 132, 138),
    "black": (22, 22, 28), "night": (18, 22, 52), "rain": (86, 104, 126), "fog": (178, 184, 188),
    "fire": (226, 84, 26), "sunset": (236, 112, 62), "desert": (210, 172, 110),
    "castle": (120, 112, 106), "moon": (224, 224, 206), "sun": (250, 208, 92),
}  # fmt: skip
MOTIFS: dict[str, str] = {
    "castle": "tower", "tower": "tower", "city": "tower", "house": "tower", "street": "tower",
    "mountain": "peak", "mountains": "peak", "hill": "peak", "hills": "peak", "forest": "peak",
    "tree": "peak", "trees": "peak", "sun": "disc", "moon": "disc", "portrait": "disc",
    "face": "disc", "cat": "disc", "dog": "disc", "planet": "ring", "ring": "ring",
    "sea": "band", "water": "band", "river": "band", "desert": "band", "fog": "band",
    "rain": "streak", "storm": "streak", "fire": "streak", "snow": "dot", "star": "dot",
    "stars": "dot", "night": "dot",
}  # fmt: skip
SMALL_WORDS = frozenset({
    "a", "an", "and", "at", "by", "for", "from", "in", "of", "on", "or", "over", "the", "to",
    "with",
})  # fmt: skip
KINDS = ("peak", "tower", "disc", "ring", "band", "dot")


class Scene(NamedTuple):
    """What a prompt stands for."""

    palette: list[Colour]
    motifs: list[str]


class Sketch:
    name = "sketch"

    def __init__(self, *, step_s: float = 0.0, load_s: float = 0.0, vram_gb: float = 0.0) -> None:
        self._step_s, self._load_s, self._vram_gb = step_s, load_s, vram_gb
        self._model: str | None = None

    def render(self, stage: Stage, record: Record, images: Sequence[Image], tell: Tell) -> Rendered:
        began = time.perf_counter()
        loaded = self._load(record.model, tell)
        if isinstance(stage, Txt2Img):
            made = self._draw_all(stage, record, tell)
        elif isinstance(stage, Img2Img):
            made = self._redraw(stage, record, images, tell)
        elif isinstance(stage, ADetailer):
            made = [self._detail(stage, record, n, image) for n, image in enumerate(images)]
        else:
            made = [self._upscale(stage, image) for image in images]
        tell.progress(1.0, "done")
        digest = hashlib.sha256(f"sketch {VERSION} {record.model}".encode()).hexdigest()
        return Rendered(
            images=made,
            seconds=time.perf_counter() - began,
            seeds=[seed_of(record, n) for n in range(len(made))],
            info={"models": {record.model or "sketch": digest}, "versions": {"sketch": VERSION}},
            loaded=loaded,
        )

    def _load(self, model: str, tell: Tell) -> bool:
        """Nothing is loaded; it is only counted, and takes as long as it was told to."""
        if model == self._model:
            return False
        self._wait(self._load_s, tell)
        self._model = model
        return True

    def _wait(self, seconds: float, tell: Tell) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            stop_if_cancelled(tell)
            time.sleep(min(left, LOOK_S))

    def _room_for(self, pixels: int, most: int = MOST_AT_ONCE) -> None:
        if pixels > most:
            raise StageFailed("bad_job", f"{pixels:,} pixels are more than the {most:,} it draws.")
        needed = pixels / 1e6
        if self._vram_gb and needed > self._vram_gb:
            raise StageFailed(
                "out_of_memory",
                f"It plays a card of {self._vram_gb:g} GB, and these images take {needed:.3g} GB.",
            )

    def _draw_all(self, stage: Txt2Img, record: Record, tell: Tell) -> list[Image]:
        width, height = record.width, record.height
        if stage.hires is not None:
            width, height = (times(side, stage.hires.factor) for side in (width, height))
        self._room_for(width * height * record.batch_size)
        work = (record.steps, record.batch_size)
        return [
            self._draw(record, stage, n, (width, height), work, tell)
            for n in range(record.batch_size)
        ]

    def _draw(
        self,
        record: Record,
        stage: Stage,
        place: int,
        size: tuple[int, int],
        work: tuple[int, int],
        tell: Tell,
    ) -> Image:
        """One of several images, in so many steps each."""
        steps, count = work
        dice = Dice(_key(record, seed_of(record, place), stage))
        scene = scene_of(record.positive)
        canvas = Canvas(*size)
        palette = scene.palette
        canvas.gradient(palette[dice.below(len(palette))], palette[dice.below(len(palette))])
        for step in range(steps):
            stop_if_cancelled(tell)
            if self._step_s:
                self._wait(self._step_s, tell)
            _draw_one(canvas, dice, scene, step, steps)
            done = (place * steps + step + 1) / (steps * count)
            tell.progress(done, f"step {step + 1} of {steps}")
        return Images.frombytes("RGB", size, bytes(canvas.data))

    def _redraw(
        self, stage: Img2Img, record: Record, images: Sequence[Image], tell: Tell
    ) -> list[Image]:
        self._room_for(sum(image.width * image.height for image in images))
        work = (stage.steps or record.steps, len(images))
        made = []
        for n, image in enumerate(images):
            fresh = self._draw(record, stage, n, image.size, work, tell)
            made.append(_blended(image.convert("RGB"), fresh, stage.denoise))
        return made

    def _detail(self, stage: ADetailer, record: Record, place: int, image: Image) -> Image:
        """A part of the image once more, larger strokes and finer ones: what a detector found."""
        dice = Dice(_key(record, seed_of(record, place), stage))
        side = max(min(image.size) // 3, 8)
        left, top = dice.below(image.width - side + 1), dice.below(image.height - side + 1)
        scene = scene_of(stage.positive or record.positive)
        canvas = Canvas(side, side)
        skin = scene.palette[dice.below(len(scene.palette))]
        canvas.gradient(mixed(skin, (255, 255, 255), 1, 3), skin)
        middle, eye = side // 2, max(side // 10, 1)
        canvas.disc(middle, middle, side * 2 // 5, mixed(skin, (255, 255, 255), 1, 2))
        for x in (middle - side // 6, middle + side // 6):
            canvas.disc(x, middle - side // 10, eye, (30, 30, 36))
        canvas.box(middle - side // 7, middle + side // 5, middle + side // 7,
                   middle + side // 5 + max(side // 24, 1), (120, 40, 50))  # fmt: skip
        whole = image.convert("RGB")
        found = (left, top, left + side, top + side)
        fresh = Images.frombytes("RGB", (side, side), bytes(canvas.data))
        whole.paste(_blended(whole.crop(found), fresh, stage.denoise), found)
        return whole

    def _upscale(self, stage: Upscale, image: Image) -> Image:
        wide, tall = times(image.width, stage.factor), times(image.height, stage.factor)
        self._room_for(wide * tall, MOST_PIXELS)
        image = image.convert("RGB")
        data = enlarged(image.tobytes(), image.width, image.height, wide, tall)
        return Images.frombytes("RGB", (wide, tall), data)


def scene_of(prompt: str) -> Scene:
    """Colours and shapes by its words; those that mean nothing here get colours of their own."""
    words = [word for word in re.findall(r"[a-z]+", prompt.lower()) if word not in SMALL_WORDS]
    words = words or ["sketch"]
    palette = [COLOURS.get(word) or _colour_of(word) for word in dict.fromkeys(words)][:MAX_COLOURS]
    if len(palette) < 3:
        palette += [mixed(palette[0], (250, 248, 240), 2, 3), mixed(palette[0], (16, 18, 30), 2, 3)]
    motifs = [MOTIFS[word] for word in words if word in MOTIFS]
    return Scene(palette, [*motifs, *motifs, *KINDS])


def _colour_of(word: str) -> Colour:
    red, green, blue = hashlib.sha256(word.encode()).digest()[:3]
    return 40 + red * 180 // 255, 40 + green * 180 // 255, 40 + blue * 180 // 255


def _key(record: Record, seed: int, stage: Stage) -> int:
    """Of all that decides a pixel and nothing else, such as how many images are made with it."""
    said = (
        seed, record.positive, record.negative, record.model, record.vae, record.sampler,
        record.scheduler, record.steps, repr(record.cfg_scale), record.clip_skip,
        [(lora.name, repr(lora.weight)) for lora in record.loras],
        msgspec.json.encode(stage),
    )  # fmt: skip
    return int.from_bytes(hashlib.sha256(repr(said).encode()).digest()[:8], "big")


def _blended(old: Image, new: Image, share: float) -> Image:
    """So much of the new one; each sum stays below 256, so that nothing runs over."""
    part = round(share * 1000)
    keep = [value * (1000 - part) // 1000 for value in range(256)] * 3
    take = [value * part // 1000 for value in range(256)] * 3
    return ImageChops.add_modulo(old.point(keep), new.point(take))


def _draw_one(canvas: Canvas, dice: Dice, scene: Scene, step: int, steps: int) -> None:
    """One shape; the first ones are large and far away, the last ones small and near."""
    wide, tall = canvas.width, canvas.height
    kind = scene.motifs[dice.below(len(scene.motifs))]
    palette = scene.palette
    colour = palette[dice.below(len(palette))]
    shade = mixed(colour, (12, 12, 20), dice.between(1, 5), 8)
    light = mixed(colour, (255, 252, 240), dice.between(1, 5), 8)
    size = max(min(wide, tall) * (steps - step // 2) // (steps * 3), 2)
    x, y = dice.below(wide), dice.below(tall)
    if kind == "tower":
        canvas.tower(x - size // 4, tall // 3 + y // 3, max(size // 2, 3), shade, light)
    elif kind == "peak":
        canvas.peak(x, tall // 4 + y // 3, tall, size + size // 2, colour, shade)
    elif kind == "disc":
        canvas.disc(x, y * 2 // 3, size // 2 + 1, light)
    elif kind == "ring":
        canvas.disc(x, y, size // 2 + 2, colour, size // 3)
    elif kind == "band":
        thick = max(size // 8, 1)
        for row in range(dice.between(1, 3)):
            canvas.box(0, y + row * thick * 3, wide, y + row * thick * 3 + thick, shade)
    else:
        small = max(min(wide, tall) // 96, 1)
        for _ in range(12):
            x, y = dice.below(wide), dice.below(tall)
            canvas.box(x, y, x + small, y + small * (6 if kind == "streak" else 1), light)
