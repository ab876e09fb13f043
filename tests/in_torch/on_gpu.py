"""The diffusers backend on a real GPU, with a model as large as Stable Diffusion 1.5.

`python -m tests.in_torch.on_gpu`, with Corral's `src` on the path. It needs torch, transformers,
diffusers, Pillow, numpy and msgspec, and no more. Prints one line of JSON; a wrong thing raises.
Elsewhere it is tried with `--tiny`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from corral import job
from corral.core.pipeline import Img2Img, Record, Txt2Img, Upscale
from corral.runtime.pipeline.backend import Rendered
from corral.runtime.pipeline.diffusers_backend import Diffusers
from corral.runtime.pipeline.images import pixel_sha256
from tests.in_torch import making
from tests.in_torch.telling import Tell

CANCEL_S = 2.0


def check(folder: Path, *, tiny: bool = False) -> dict[str, Any]:
    gpu = torch.cuda.is_available()
    assert gpu or tiny, "There is no GPU that PyTorch sees."
    began = time.perf_counter()
    size, dtype = (making.TINY if tiny else making.LARGE), (torch.float16 if gpu else torch.float32)
    making.make(folder / "random", size, dtype=dtype)
    found: dict[str, Any] = {"made_s": time.perf_counter() - began}
    os.environ["CORRAL_MODEL_PATHS"] = str(folder)
    side = 64 if tiny else 512
    record = Record(
        positive="a castle in the snow, oil on canvas",
        negative="blurry",
        model="random",
        sampler="dpm++ 2m",
        scheduler="karras",
        steps=20,
        width=side,
        height=side,
        seed=42,
    )
    backend = Diffusers()
    first, warm, third = (backend.render(Txt2Img(), record, (), Tell()) for _ in range(3))
    same = {pixels(one) for one in (first, warm, third)}
    assert len(same) == 1, "The same record gave other pixels."
    assert [one.loaded for one in (first, warm, third)] == [True, False, False]
    found |= {
        "first_s": first.seconds,
        "per_image_s": min(warm.seconds, third.seconds),
        "pixel_sha256": same.pop(),
        **first.info,
    }

    other = backend.render(Txt2Img(), replace(record, seed=43), (), Tell())
    assert pixels(other) != found["pixel_sha256"], "Another seed gave the same pixels."
    four = backend.render(Txt2Img(), replace(record, batch_size=4), (), Tell())
    assert len({pixel_sha256(image) for image in four.images}) == 4
    found["per_image_of_four_s"] = four.seconds / 4

    chain = first.images
    for stage in (Img2Img(denoise=0.5), Upscale(factor=2.0)):
        chain = backend.render(stage, record, chain, Tell()).images
    assert chain[0].size == (side * 2, side * 2)

    found["cancel_s"] = cancel(backend, record)
    again = backend.render(Txt2Img(), record, (), Tell())
    assert pixels(again) == found["pixel_sha256"], "After a cancel the pixels are others."
    assert not again.loaded
    if gpu:
        found["vram_gb"] = torch.cuda.max_memory_allocated() / 2**30
        backend.close()
        found["vram_left_gb"] = torch.cuda.memory_allocated() / 2**30
        assert found["vram_left_gb"] < 0.1, "A closed backend holds VRAM."
    backend.close()
    fresh = Diffusers()
    assert pixels(fresh.render(Txt2Img(), record, (), Tell())) == found["pixel_sha256"]
    fresh.close()
    return found


def cancel(backend: Diffusers, record: Record) -> float:
    """How long it takes from the wish to the end, asked somewhere in the middle."""
    asked = threading.Event()
    tell = Tell(asked.is_set)
    at: list[float] = []

    def ask() -> None:
        while len(tell.steps) < 5:
            time.sleep(0.001)
        at.append(time.monotonic())
        asked.set()

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        backend.render(Txt2Img(), replace(record, steps=1000), (), tell)
    except job.Cancelled:
        took = time.monotonic() - at[0]
    else:
        raise AssertionError("It was cancelled and gave an image.")
    finally:
        asking.join()
    assert took < CANCEL_S, f"The cancel took {took:.2f} s."
    return took


def pixels(rendered: Rendered) -> str:
    (image,) = rendered.images
    return pixel_sha256(image)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(check(Path(place), tiny="--tiny" in sys.argv)))
