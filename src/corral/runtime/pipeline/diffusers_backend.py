"""The backend that has its model in its own process: Hugging Face diffusers, kept warm.

It needs the extra `corral[diffusers]`; nothing of that is imported before the first stage.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from itertools import groupby
from typing import Any

from PIL import Image as Images
from PIL.Image import Image

from corral import job
from corral.core.pipeline import ADetailer, Img2Img, Record, Stage, Txt2Img, Upscale
from corral.runtime.pipeline import diffusers_schedulers
from corral.runtime.pipeline.backend import Rendered, StageFailed, Tell
from corral.runtime.pipeline.diffusers_models import Shelf
from corral.runtime.pipeline.diffusers_schedulers import key

EXTRA = ("torch", "transformers", "diffusers")
LOOK_S = 0.1
"""How often it is asked whether the job was cancelled, also in the middle of a step."""
SEEDS = 2**32
RESIZES = {
    "lanczos": Images.Resampling.LANCZOS,
    "bicubic": Images.Resampling.BICUBIC,
    "bilinear": Images.Resampling.BILINEAR,
    "nearest": Images.Resampling.NEAREST,
}
NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


class Diffusers:
    name = "diffusers"

    def __init__(self, *, device: str = "", dtype: str = "", models: int = 1) -> None:
        self._device, self._dtype, self._models = device, dtype, models
        self._torch: Any = None
        self._shelf: Shelf | None = None

    def render(self, stage: Stage, record: Record, images: Sequence[Image], tell: Tell) -> Rendered:
        if isinstance(stage, ADetailer):
            raise StageFailed(
                "stage_missing", "diffusers has no ADetailer; a worker with WebUI may have it."
            )
        began = time.perf_counter()
        if isinstance(stage, Upscale):
            made = [_enlarged(stage, image) for image in images]
            return Rendered(images=made, seconds=time.perf_counter() - began)
        shelf = self._open()
        try:
            rendered = self._diffuse(stage, record, images, tell, shelf)
        except (MemoryError, RuntimeError) as error:
            failure = self._failure(error)
            if failure is None:
                raise
        except ValueError as error:
            raise StageFailed("bad_job", f"diffusers refused the record: {error}") from error
        else:
            rendered.seconds = time.perf_counter() - began
            return rendered
        # Only here are the frames gone whose tensors filled the memory.
        with suppress(RuntimeError):
            shelf.clear()
        raise failure

    def close(self) -> None:
        if self._shelf is not None:
            with suppress(Exception):
                self._shelf.clear()
            self._shelf = None

    def _open(self) -> Shelf:
        if self._shelf is not None:
            return self._shelf
        # Both are read when these are imported: nothing is fetched, and the same sum is the same.
        os.environ["HF_HUB_OFFLINE"] = "1"
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        try:
            torch, transformers, diffusers = (import_module(name) for name in EXTRA)
        except ImportError as error:
            raise StageFailed(
                "stage_missing",
                f"The diffusers backend cannot be imported on this worker ({error}). There: "
                "pip install 'corral[diffusers]'",
            ) from error
        for library in (transformers, diffusers):
            library.utils.logging.set_verbosity_error()
            library.utils.logging.disable_progress_bar()
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        device = self._device or ("cuda" if torch.cuda.is_available() else "cpu")
        dtype = self._dtype or ("float16" if device.startswith("cuda") else "float32")
        self._torch = torch
        self._shelf = Shelf(torch, diffusers, device, getattr(torch, dtype), self._models)
        self._about = {
            "versions": {name: version(name) for name in EXTRA},
            "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
            "dtype": dtype,
        }
        self._diffusers = diffusers
        return self._shelf

    def _diffuse(
        self,
        stage: Txt2Img | Img2Img,
        record: Record,
        images: Sequence[Image],
        tell: Tell,
        shelf: Shelf,
    ) -> Rendered:
        if isinstance(stage, Txt2Img) and (stage.refiner or stage.hires):
            what = "second pass (hires)" if stage.hires else "refiner"
            raise StageFailed("stage_missing", f"The diffusers backend has no {what}.")
        diffusers_schedulers.choose(record.sampler, record.scheduler)
        tell.progress(0.0, f"model {record.model}")
        loaded, fresh = shelf.get(record.model, record.vae)
        pipe = loaded.text if isinstance(stage, Txt2Img) else loaded.image
        hashes = loaded.wear(record.loras, shelf.digests)
        pipe.scheduler = diffusers_schedulers.make(
            self._diffusers, loaded.own_schedule, record.sampler, record.scheduler
        )
        said = _said(pipe, record)
        watch = Watch(tell)
        try:
            with self._torch.nn.modules.module.register_module_forward_pre_hook(watch.look):
                if isinstance(stage, Txt2Img):
                    made = self._draw(pipe, record, said, watch)
                else:
                    made = self._redraw(pipe, stage, record, images, said, watch)
        except job.Cancelled:
            loaded.restore()
            raise
        tell.progress(1.0, "done")
        return Rendered(
            images=made,
            seconds=0.0,
            seeds=[(record.seed + place) % SEEDS for place in range(len(made))],
            info={
                **self._about,
                "models": {**loaded.hashes, **hashes},
                "scheduler": type(pipe.scheduler).__name__,
            },
            warnings=_warnings(pipe, record),
            loaded=fresh,
        )

    def _draw(self, pipe: Any, record: Record, said: dict[str, Any], watch: Watch) -> list[Image]:
        return self._call(
            pipe, range(record.batch_size), record, said, watch,
            num_inference_steps=record.steps, width=record.width, height=record.height,
        )  # fmt: skip

    def _redraw(
        self,
        pipe: Any,
        stage: Img2Img,
        record: Record,
        images: Sequence[Image],
        said: dict[str, Any],
        watch: Watch,
    ) -> list[Image]:
        steps = stage.steps or record.steps
        given = [image.convert("RGB") for image in images]
        if int(steps * stage.denoise) < 1:
            return given  # less than one step changes nothing
        made: list[Image] = []
        for places in _passes(given, record.batch_size):
            watch.share(places[0] / len(given), len(places) / len(given))
            made += self._call(
                pipe, places, record, said, watch, num_inference_steps=steps,
                image=[given[place] for place in places], strength=stage.denoise,
            )  # fmt: skip
        return made

    def _call(
        self,
        pipe: Any,
        places: Sequence[int],
        record: Record,
        said: dict[str, Any],
        watch: Watch,
        **more: Any,
    ) -> list[Image]:
        """One pass. The noise is drawn on the CPU: the same on every card."""
        seeds = ((record.seed + place) % SEEDS for place in places)
        several = {
            name: [said[name]] * len(places) if name in ("prompt", "negative_prompt") else value
            for name, value in said.items()
        }
        found = pipe(
            **several,
            **more,
            generator=[self._torch.Generator("cpu").manual_seed(seed) for seed in seeds],
            callback_on_step_end=watch.step,
            output_type="np",
        ).images
        if not (found == found).all():
            raise StageFailed(
                "backend_mismatch",
                f"The model gave no colours (NaN) in {self._about['dtype']}. Set `dtype: float32` "
                "for the diffusers backend, or use another VAE.",
            )
        images: list[Image] = pipe.numpy_to_pil(found)
        return images

    def _failure(self, error: BaseException) -> StageFailed | None:
        """What it means for the job; None for what nobody foresaw."""
        said = str(error).strip().partition("\n")[0]
        short = isinstance(error, (MemoryError, self._torch.OutOfMemoryError))
        if short or any(words in str(error) for words in NO_MEMORY):
            return StageFailed("out_of_memory", f"Out of memory: {said or type(error).__name__}")
        if "CUDA error" in str(error) or "cuDNN error" in str(error):
            return StageFailed("backend_down", f"The GPU failed: {said}")
        return None


class Watch:
    """Looks for a cancel before every layer, and tells each step."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._next = 0.0
        self._from, self._part = 0.0, 1.0

    def share(self, begin: float, part: float) -> None:
        """Which part of the stage the next pass is."""
        self._from, self._part = begin, part

    def look(self, *_: object) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + LOOK_S
        if self._tell.cancelled():
            raise job.Cancelled("The job was cancelled.")

    def step(self, pipe: Any, step: int, _: object, kept: dict[str, Any]) -> dict[str, Any]:
        if self._tell.cancelled():
            raise job.Cancelled("The job was cancelled.")
        count = pipe.num_timesteps
        self._tell.progress(
            self._from + self._part * (step + 1) / count, f"step {step + 1} of {count}"
        )
        return kept


def _said(pipe: Any, record: Record) -> dict[str, Any]:
    """What the record says that is no number of images, as arguments of the pipeline; where it
    has none of them, that is told."""
    said: dict[str, Any] = {"prompt": record.positive, "guidance_scale": record.cfg_scale}
    if record.negative:
        said["negative_prompt"] = record.negative
    if record.clip_skip > 1:
        layers = pipe.text_encoder.config.num_hidden_layers
        if record.clip_skip > layers:
            raise StageFailed(
                "bad_job", f"clip_skip {record.clip_skip}: the text encoder has {layers} layers."
            )
        said["clip_skip"] = record.clip_skip - 1  # WebUI's 1 skips nothing
    known = inspect.signature(pipe.__call__).parameters
    for name in ("callback_on_step_end", *said):
        if name not in known:
            raise StageFailed(
                "stage_missing", f"{type(pipe).__name__} of this diffusers has no {name}."
            )
    return said


def _warnings(pipe: Any, record: Record) -> list[str]:
    tokenizer = getattr(pipe, "tokenizer", None)
    if tokenizer is None:
        return []
    found = []
    for name, prompt in (("prompt", record.positive), ("negative prompt", record.negative)):
        count = len(tokenizer(prompt, truncation=False).input_ids)
        if count > tokenizer.model_max_length:
            found.append(
                f"The {name} has {count} tokens; the model reads {tokenizer.model_max_length}."
            )
    return found


def _passes(images: Sequence[Image], most: int) -> Iterator[Sequence[int]]:
    """Images of one size go together, as many as the record allows."""
    for _, group in groupby(range(len(images)), lambda place: images[place].size):
        places = list(group)
        for begin in range(0, len(places), most):
            yield places[begin : begin + most]


def _enlarged(stage: Upscale, image: Image) -> Image:
    resize = RESIZES.get(key(stage.upscaler))
    if resize is None:
        raise StageFailed(
            "model_missing",
            f"The diffusers backend has no upscaler {stage.upscaler!r}. "
            f"It has {', '.join(RESIZES)}.",
        )
    factor = round(stage.factor * 1000)
    size = (max(image.width * factor // 1000, 1), max(image.height * factor // 1000, 1))
    return image.convert("RGB").resize(size, resize)
