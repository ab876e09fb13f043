"""The backend that has its model in its own process: Hugging Face diffusers, kept warm.

It needs the extra `corral[diffusers]`; nothing of that is imported before the first stage.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from typing import Any

from PIL.Image import Image

from corral import job
from corral.core.images.pipeline import ADetailer, Img2Img, Record, Stage, Txt2Img, Upscale
from corral.runtime.pipeline.backend import Rendered, StageFailed, Tell, seed_of
from corral.runtime.pipeline.diffusers import schedulers
from corral.runtime.pipeline.diffusers.errors import meaning
from corral.runtime.pipeline.diffusers.models import Shelf
from corral.runtime.pipeline.diffusers.passes import Passes, enlarged

EXTRA = ("torch", "transformers", "diffusers")
NOT_FOR_IT = "does not support custom"
"""What a pipeline says of a scheduler that cannot follow it."""


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
            made = [enlarged(stage, image) for image in images]
            return Rendered(images=made, seconds=time.perf_counter() - began)
        shelf = self._open()
        try:
            rendered = self._diffuse(stage, record, images, tell, shelf)
        except (MemoryError, RuntimeError, OSError) as error:
            failure = meaning(error)
            if failure is None:
                raise
        except ValueError as error:
            code = "stage_missing" if NOT_FOR_IT in str(error) else "bad_job"
            raise StageFailed(code, f"diffusers refused the record: {error}") from error
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
        schedulers.choose(record.sampler, record.scheduler)
        passes = Passes(self._torch, self._diffusers, shelf, record, tell)
        try:
            made = passes.run(stage, images)
        except job.Cancelled:
            shelf.restore()
            raise
        tell.progress(1.0, "done")
        return Rendered(
            images=made,
            seconds=0.0,
            seeds=[seed_of(record, place) for place in range(len(made))],
            info={**self._about, "models": passes.hashes, "scheduler": passes.scheduler},
            warnings=passes.warnings,
            loaded=passes.fresh,
        )
