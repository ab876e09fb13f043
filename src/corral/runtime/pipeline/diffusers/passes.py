"""The passes of one stage: calls of diffusers' pipelines, one after another.

A txt2img is one call, or up to three: the first steps by the model, the others by a refiner, and a
second, larger pass (hires). Between them there are latents, and no model is held by a name here:
so the one that went from the shelf is gone before the next one comes.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from msgspec.structs import replace
from PIL import Image as Images
from PIL.Image import Image

from corral.core.images.pipeline import Hires, Img2Img, Lora, Record, Refiner, Txt2Img, Upscale
from corral.runtime.pipeline.backend import StageFailed, Tell, seed_of, stop_if_cancelled, times
from corral.runtime.pipeline.diffusers import schedulers
from corral.runtime.pipeline.diffusers.models import LoadedModel, Shelf
from corral.runtime.pipeline.diffusers.prompts import said_of, warnings_of
from corral.runtime.pipeline.diffusers.schedulers import is_flow, key

LOOK_S = 0.1
"""How often it is asked whether the job was cancelled, also in the middle of a step."""
RESIZES = {
    "lanczos": Images.Resampling.LANCZOS,
    "bicubic": Images.Resampling.BICUBIC,
    "bilinear": Images.Resampling.BILINEAR,
    "nearest": Images.Resampling.NEAREST,
}
LATENT_RESIZES: dict[str, dict[str, Any]] = {
    "latent": {"mode": "bilinear"},
    "latentantialiased": {"mode": "bilinear", "antialias": True},
    "latentbicubic": {"mode": "bicubic"},
    "latentbicubicantialiased": {"mode": "bicubic", "antialias": True},
    "latentnearest": {"mode": "nearest"},
    "latentnearestexact": {"mode": "nearest-exact"},
}
"""As WebUI names them and means them."""


class Passes:
    """One stage being rendered, and what it used, for the replay card."""

    def __init__(
        self, torch: Any, diffusers: Any, shelf: Shelf, record: Record, tell: Tell
    ) -> None:
        self._torch, self._diffusers, self._shelf = torch, diffusers, shelf
        self._record, self._tell = record, tell
        self._watch = Watch(tell)
        self._own: dict[str, Any] = {}
        self.hashes: dict[str, str] = {}
        self.scheduler = ""
        self.fresh = False
        self.warnings: list[str] = []

    def run(self, stage: Txt2Img | Img2Img, images: Sequence[Image]) -> list[Image]:
        with self._torch.nn.modules.module.register_module_forward_pre_hook(self._watch.look):
            return self._draw(stage) if isinstance(stage, Txt2Img) else self._redraw(stage, images)

    # --- txt2img -------------------------------------------------------------------------------

    def _draw(self, stage: Txt2Img) -> list[Image]:
        record, hires = self._record, stage.hires
        if hires is not None:
            _resize_of(hires.upscaler, latent=True)
        in_latents = hires is not None and key(hires.upscaler) in LATENT_RESIZES
        switch = _switch(stage.refiner, record.steps)
        work = record.steps + (_second(hires, record.steps) * hires.factor**2 if hires else 0)
        generators = self._generators(range(record.batch_size))
        self._watch.share(0.0, switch / work)
        made = self._first(switch, generators, in_latents or switch < record.steps)
        if stage.refiner is not None and switch < record.steps:
            self._watch.share(switch / work, (record.steps - switch) / work, "refiner")
            made = self._refined(made, stage.refiner, switch, generators, in_latents)
        if hires is not None:
            self._watch.share(record.steps / work, 1 - record.steps / work, "hires")
            made = self._second(made, hires)
        found: list[Image] = made
        return found

    def _first(self, switch: int, generators: list[Any], in_latents: bool) -> Any:
        record = self._record
        loaded = self._take(record.model, record.loras)
        self._own = loaded.own_schedule
        pipe = loaded.text
        said = said_of(pipe, record)
        self.warnings += warnings_of(pipe, record)
        size = (record.width, record.height)
        if any(side % _block(pipe) for side in size):
            raise StageFailed(
                "bad_job",
                f"{record.model} draws in blocks of {_block(pipe)} pixels: {size[0]} x {size[1]} "
                "is no whole number of them.",
            )
        pipe.scheduler = self._schedule(loaded.own_schedule)
        if switch < record.steps:
            if not hasattr(type(pipe), "interrupt"):
                raise StageFailed(
                    "stage_missing", f"diffusers has no refiner for {type(pipe).__name__}."
                )
            self._watch.until = switch * pipe.scheduler.order
        try:
            return self._call(
                pipe, generators, said, in_latents=in_latents,
                num_inference_steps=record.steps, width=size[0], height=size[1],
            )  # fmt: skip
        finally:
            self._watch.until = 0

    def _refined(
        self, latents: Any, refiner: Refiner, switch: int, generators: list[Any], in_latents: bool
    ) -> Any:
        """The other steps of the same schedule, by another model. The noise that a sampler adds
        goes on where the first steps left it."""
        steps = self._record.steps
        loaded = self._take(refiner.model, ())
        pipe = loaded.image
        alike = is_flow(loaded.own_schedule) == is_flow(self._own)
        if not alike or latents.shape[1] != pipe.vae.config.latent_channels:
            raise StageFailed(
                "bad_job",
                f"{refiner.model} cannot go on with what {self._record.model} began: they are "
                "models of two kinds.",
            )
        own = dict(self._own)
        if "prediction_type" in loaded.own_schedule:
            own["prediction_type"] = loaded.own_schedule["prediction_type"]
        states = [generator.get_state() for generator in generators]

        def rewind() -> None:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)

        pipe.scheduler = self._schedule(own, rewind)
        return self._call(
            pipe, generators, said_of(pipe, replace(self._record, clip_skip=1)),
            in_latents=in_latents, image=latents, num_inference_steps=steps,
            strength=_strength(own, steps - switch, steps),
            **_size_for(pipe, (self._record.width, self._record.height)),
        )  # fmt: skip

    def _second(self, made: Any, hires: Hires) -> Any:
        """Larger, then redrawn: exactly as many steps as it says, as WebUI and ComfyUI do it."""
        record = self._record
        loaded = self._take(record.model, record.loras)
        pipe = loaded.image
        block = _block(pipe)
        size = (
            times(record.width, hires.factor, block),
            times(record.height, hires.factor, block),
        )
        steps = _second(hires, record.steps)
        if isinstance(made, list):
            resize = _resize_of(hires.upscaler)
            made = [image.resize(size, resize) for image in made]
            if not steps:
                return made
        elif not steps:
            raise StageFailed(
                "stage_missing",
                f"diffusers has no hires by {hires.upscaler!r} with denoise 0: no step would be "
                "left to it. Take lanczos, or more denoise.",
            )
        else:
            tall, wide = (side // pipe.vae_scale_factor for side in reversed(size))
            how = LATENT_RESIZES[key(hires.upscaler)]
            larger = self._torch.nn.functional.interpolate(made.float(), size=(tall, wide), **how)
            made = larger.to(made.dtype)
        pipe.scheduler = self._schedule(loaded.own_schedule)
        own = pipe.scheduler.config
        most = own.get("original_inference_steps") or own.num_train_timesteps
        total = min(max(int(steps / hires.denoise), steps), max(most, steps))
        steps = min(steps, max(round(total * hires.denoise), 1))
        return self._call(
            pipe, self._generators(range(record.batch_size)), said_of(pipe, record), image=made,
            num_inference_steps=total, strength=_strength(loaded.own_schedule, steps, total),
            **_size_for(pipe, size),
        )  # fmt: skip

    # --- img2img -------------------------------------------------------------------------------

    def _redraw(self, stage: Img2Img, images: Sequence[Image]) -> list[Image]:
        record = self._record
        steps = stage.steps or record.steps
        loaded = self._take(record.model, record.loras)
        pipe = loaded.image
        pipe.scheduler = self._schedule(loaded.own_schedule)
        said = said_of(pipe, record)
        self.warnings += warnings_of(pipe, record)
        given = [image.convert("RGB") for image in images]
        if int(steps * stage.denoise) < 1:
            return given  # less than one step changes nothing
        made: list[Image] = []
        for places in _groups(given, record.batch_size):
            self._watch.share(places[0] / len(given), len(places) / len(given))
            made += self._call(
                pipe, self._generators(places), said, num_inference_steps=steps,
                image=[given[place] for place in places], strength=stage.denoise,
                **_size_for(pipe, given[places[0]].size),
            )  # fmt: skip
        return made

    # --- all of them ---------------------------------------------------------------------------

    def _take(self, model: str, loras: tuple[Lora, ...]) -> LoadedModel:
        self._tell.progress(self._watch.begun, f"model {model}")
        loaded, fresh = self._shelf.get(model, self._record.vae)
        self.fresh |= fresh
        self.hashes |= {**loaded.hashes, **loaded.wear(loras, self._shelf.digests)}
        self.warnings += [one for one in loaded.warnings if one not in self.warnings]
        return loaded

    def _schedule(self, own: dict[str, Any], going_on: Callable[[], None] | None = None) -> Any:
        record = self._record
        made = schedulers.make(
            self._diffusers, own, record.sampler, record.scheduler, going_on=going_on
        )
        self.scheduler = type(made).__name__
        return made

    def _generators(self, places: Sequence[int]) -> list[Any]:
        """The noise is drawn on the CPU: the same on every card."""
        seeds = (seed_of(self._record, place) for place in places)
        return [self._torch.Generator("cpu").manual_seed(seed) for seed in seeds]

    def _call(
        self,
        pipe: Any,
        generators: list[Any],
        said: dict[str, Any],
        in_latents: bool = False,
        **more: Any,
    ) -> Any:
        several = {
            name: [said[name]] * len(generators) if name in ("prompt", "negative_prompt") else value
            for name, value in said.items()
        }
        found = pipe(
            **several,
            **more,
            generator=generators,
            callback_on_step_end=self._watch.step,
            output_type="latent" if in_latents else "np",
        ).images
        if in_latents:
            unpack = getattr(pipe, "_unpack_latents", None)
            if unpack is None:
                return found
            return unpack(found, more["height"], more["width"], pipe.vae_scale_factor)
        if not (found == found).all():
            dtype = str(pipe.dtype).removeprefix("torch.")
            raise StageFailed(
                "backend_mismatch",
                f"The model gave no colours (NaN) in {dtype}. Set `dtype: bfloat16` or "
                "`float32` for the diffusers backend, or use another VAE.",
            )
        return pipe.numpy_to_pil(found)


class Watch:
    """Looks for a cancel before every layer, and tells each step."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._next = 0.0
        self._part, self._note = 1.0, ""
        self.begun = 0.0
        self.until = 0
        """After as many steps the pass is over; 0: when all are done."""

    def share(self, begin: float, part: float, note: str = "") -> None:
        """Which part of the stage the next pass is."""
        self.begun, self._part = begin, part
        self._note = f" ({note})" if note else ""

    def look(self, *_: object) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + LOOK_S
        stop_if_cancelled(self._tell)

    def step(self, pipe: Any, step: int, _: object, kept: dict[str, Any]) -> dict[str, Any]:
        stop_if_cancelled(self._tell)
        count = pipe.num_timesteps
        share = self._part * (step + 1) / (self.until or count)
        self._tell.progress(self.begun + share, f"step {step + 1} of {count}{self._note}")
        if step + 1 == self.until:
            pipe._interrupt = True  # it skips the other steps, and gives back what there is
        return kept


def enlarged(stage: Upscale, image: Image) -> Image:
    resize = _resize_of(stage.upscaler)
    size = (times(image.width, stage.factor), times(image.height, stage.factor))
    return image.convert("RGB").resize(size, resize)


def _resize_of(upscaler: str, *, latent: bool = False) -> Images.Resampling | None:
    """None where latents are resized instead."""
    if latent and key(upscaler) in LATENT_RESIZES:
        return None
    if key(upscaler) not in RESIZES:
        raise StageFailed(
            "model_missing",
            f"The diffusers backend has no upscaler {upscaler!r}. It has {', '.join(RESIZES)}"
            f"{', and for hires Latent and its kinds' if latent else ''}.",
        )
    return RESIZES[key(upscaler)]


def _switch(refiner: Refiner | None, steps: int) -> int:
    """How many steps are the model's own."""
    if refiner is None:
        return steps
    switch = min(round(steps * refiner.switch_at), steps)
    if not switch:
        raise StageFailed(
            "stage_missing",
            f"With switch_at {refiner.switch_at:g} of {steps} steps all would be the refiner's. "
            f"diffusers has none that begins: name {refiner.model!r} as the model.",
        )
    return switch


def _second(hires: Hires, steps: int) -> int:
    """The steps of the second pass."""
    return (hires.steps or steps) if hires.denoise > 0 else 0


def _strength(own: dict[str, Any], steps: int, total: int) -> float:
    """What makes a pipeline run the last so many steps of all: each kind rounds another way."""
    return min((steps + (-0.5 if is_flow(own) else 0.5)) / total, 1.0)


def _block(pipe: Any) -> int:
    """The least that a side may grow by, in pixels."""
    patch = 2 if hasattr(pipe, "_unpack_latents") else getattr(pipe, "patch_size", 1)
    return max(8, int(pipe.vae_scale_factor) * int(patch))


def _size_for(pipe: Any, size: tuple[int, int]) -> dict[str, Any]:
    """Pipelines that take a size with an image would else draw in one of their own."""
    known = inspect.signature(pipe.__call__).parameters
    block = _block(pipe)
    sides = {"width": size[0] // block * block, "height": size[1] // block * block}
    return sides if sides.keys() <= known.keys() else {}


def _groups(images: Sequence[Image], most: int) -> Iterator[Sequence[int]]:
    """Images of one size go together, as many as the record allows."""
    for _, group in groupby(range(len(images)), lambda place: images[place].size):
        places = list(group)
        for begin in range(0, len(places), most):
            yield places[begin : begin + most]
