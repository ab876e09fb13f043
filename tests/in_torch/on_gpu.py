"""The diffusers backend on a real GPU, with models as large as Stable Diffusion 1.5 and XL.

`python -m tests.in_torch.on_gpu`, with Corral's `src` on the path. It needs torch, transformers,
diffusers, Pillow, numpy and msgspec, and no more. Prints one line of JSON for each check and one
with all of them at the end; a wrong thing raises. Elsewhere it is tried with `--tiny`.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from corral import job
from corral.core.images.pipeline import Hires, Img2Img, Record, Refiner, Txt2Img, Upscale
from corral.runtime.failures import spoils
from corral.runtime.pipeline.backend import Rendered, StageFailed
from corral.runtime.pipeline.diffusers.backend import Diffusers
from corral.runtime.pipeline.images import pixel_sha256
from tests.in_torch import making
from tests.in_torch.telling import Tell

CANCEL_S = 2.0
POISON_S = 240
GPU = torch.cuda.is_available()
PLAIN = Txt2Img()
CASTLE = Record(
    positive="a castle in the snow, oil on canvas",
    negative="blurry",
    model="random",
    sampler="dpm++ 2m",
    scheduler="karras",
    steps=20,
    seed=42,
)


def check(folder: Path, *, tiny: bool = False) -> dict[str, Any]:
    assert GPU or tiny, "There is no GPU that PyTorch sees."
    os.environ["CORRAL_MODEL_PATHS"] = str(folder)
    small = replace(CASTLE, width=64 if tiny else 512, height=64 if tiny else 512)
    large = replace(
        small, model="xl", sampler="euler", width=64 if tiny else 1024, height=64 if tiny else 1024
    )
    made = {"made_s": _make(folder, tiny=tiny)}
    found = _told("sd15", {**made, **one_model(small)})
    backend = Diffusers(dtype="bfloat16" if GPU else "", models=2)
    found["xl"] = _told("xl", twice(backend, large))
    hires = Txt2Img(hires=Hires(factor=1.5, denoise=0.5))
    found["hires"] = _told("hires", twice(backend, large, hires))
    refiner = Txt2Img(refiner=Refiner("xl-refiner", 0.8))
    found["refiner"] = _told("refiner", twice(backend, large, refiner))
    backend.close()
    found["in_turn"] = _told("in_turn", in_turn(small, large))
    found["poisoned"] = _told("poisoned", poisoned() if GPU else {"left_out": "no GPU"})
    return found


def _make(folder: Path, *, tiny: bool) -> float:
    began = time.perf_counter()
    sizes = (making.TINY, making.TINY) if tiny else (making.LARGE, making.XL)
    half = (torch.float16, torch.bfloat16) if GPU else (torch.float32, torch.float32)
    with torch.device("cuda") if GPU else nullcontext():  # there their numbers are drawn at once
        making.make(folder / "random", sizes[0], dtype=half[0])
        making.make_xl(folder / "xl", sizes[1], dtype=half[1])
        making.make_refiner(folder / "xl-refiner", sizes[1], dtype=half[1])
        making.make(folder / "tiny")
    if GPU:
        gc.collect()
        torch.cuda.empty_cache()
    return time.perf_counter() - began


# --- the checks ----------------------------------------------------------------------------------


def one_model(record: Record) -> dict[str, Any]:
    backend = Diffusers()
    first, warm, third = (backend.render(PLAIN, record, (), Tell()) for _ in range(3))
    same = {pixels(one) for one in (first, warm, third)}
    assert len(same) == 1, "The same record gave other pixels."
    assert [one.loaded for one in (first, warm, third)] == [True, False, False]
    found: dict[str, Any] = {
        "first_s": first.seconds,
        "per_image_s": min(warm.seconds, third.seconds),
        "pixel_sha256": same.pop(),
        **first.info,
    }

    other = backend.render(PLAIN, replace(record, seed=43), (), Tell())
    assert pixels(other) != found["pixel_sha256"], "Another seed gave the same pixels."
    four = backend.render(PLAIN, replace(record, batch_size=4), (), Tell())
    assert len({pixel_sha256(image) for image in four.images}) == 4
    found["per_image_of_four_s"] = four.seconds / 4

    chain = first.images
    for stage in (Img2Img(denoise=0.5), Upscale(factor=2.0)):
        chain = backend.render(stage, record, chain, Tell()).images
    assert chain[0].size == (record.width * 2, record.height * 2)

    found["cancel_s"] = cancel(backend, record)
    again = backend.render(PLAIN, record, (), Tell())
    assert pixels(again) == found["pixel_sha256"], "After a cancel the pixels are others."
    assert not again.loaded
    found["vram_gb"] = _peak_gb()
    backend.close()
    found["vram_left_gb"] = _held_gb()
    assert found["vram_left_gb"] < 0.1, "A closed backend holds VRAM."
    fresh = Diffusers()
    assert pixels(fresh.render(PLAIN, record, (), Tell())) == found["pixel_sha256"]
    fresh.close()
    return found


def twice(backend: Diffusers, record: Record, stage: Txt2Img = PLAIN) -> dict[str, Any]:
    """Its pixels are the same, and the second time nothing is loaded."""
    _peak_gb()
    first, again = (backend.render(stage, record, (), Tell()) for _ in range(2))
    assert pixels(first) == pixels(again), "The same record gave other pixels."
    assert not again.loaded
    grown = stage.hires.factor if stage.hires else 1.0
    assert first.images[0].size == (int(record.width * grown), int(record.height * grown))
    return {
        "first_s": first.seconds,
        "per_image_s": again.seconds,
        "size": first.images[0].size,
        "dtype": first.info["dtype"],
        "vram_gb": _peak_gb(),
        "pixel_sha256": pixels(first),
    }


def in_turn(small: Record, large: Record) -> dict[str, Any]:
    """One model at a time: what the large one held is free again under the small one."""
    backend = Diffusers(dtype="bfloat16" if GPU else "")
    held: list[float] = []
    switches: list[float] = []
    shown: list[str] = []
    for record in (small, large, small, large):
        rendered = backend.render(PLAIN, replace(record, steps=4), (), Tell())
        assert rendered.loaded
        switches.append(rendered.seconds)
        held.append(_held_gb())
        shown.append(pixels(rendered))
    assert shown[:2] == shown[2:], "After a switch the pixels are others."
    if GPU:
        assert max(held[0], held[2]) < held[1] / 1.5, f"The large model still holds VRAM: {held}"
        assert abs(held[2] - held[0]) < 0.1, f"Switching leaves something: {held}"
    backend.close()
    return {"held_gb": held, "switch_s": switches, "left_gb": _held_gb()}


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
        backend.render(PLAIN, replace(record, steps=1000), (), tell)
    except job.Cancelled:
        took = time.monotonic() - at[0]
    else:
        raise AssertionError("It was cancelled and gave an image.")
    finally:
        asking.join()
    assert took < CANCEL_S, f"The cancel took {took:.2f} s."
    return took


def poisoned() -> dict[str, Any]:
    """A real assertion on the device, in a process of its own. There the backend is lost; a fresh
    process renders as if nothing had been."""
    found: dict[str, Any] = {}
    for name, word in (("broken", "--poison"), ("fresh", "--fresh")):
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "tests.in_torch.on_gpu", word],
            capture_output=True, text=True, timeout=POISON_S,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        found |= json.loads(done.stdout.splitlines()[-1])
        found[f"{name}_s"] = time.perf_counter() - began
    return found


def poison() -> dict[str, Any]:
    record = replace(CASTLE, model="tiny", width=64, height=64)
    backend = Diffusers()
    backend.render(PLAIN, record, (), Tell())

    def touch_what_is_not_there(*_: object) -> None:
        place = torch.tensor([5], device="cuda")
        torch.zeros(1, device="cuda")[place]
        torch.cuda.synchronize()

    with torch.nn.modules.module.register_module_forward_pre_hook(touch_what_is_not_there):
        failed = _refused(backend, record)
    assert failed.code == "backend_down", failed
    assert spoils({"code": failed.code, "message": failed.message}), failed.message
    after = _refused(backend, record)  # with nothing in its way any more
    assert spoils({"code": after.code, "message": after.message}), after.message
    return {"said": failed.message, "then": after.message}


def fresh() -> dict[str, Any]:
    record = replace(CASTLE, model="tiny", width=64, height=64)
    backend = Diffusers()
    made = backend.render(PLAIN, record, (), Tell())
    backend.close()
    return {"fresh_sha256": pixels(made)}


def _refused(backend: Diffusers, record: Record) -> StageFailed:
    try:
        backend.render(PLAIN, record, (), Tell())
    except StageFailed as failed:
        return failed
    raise AssertionError("It rendered on a GPU that had failed.")


# --- figures -------------------------------------------------------------------------------------


def _peak_gb() -> float:
    """The most since it was asked last."""
    if not GPU:
        return 0.0
    found = float(torch.cuda.max_memory_allocated() / 2**30)
    torch.cuda.reset_peak_memory_stats()
    return found


def _held_gb() -> float:
    return float(torch.cuda.memory_allocated() / 2**30) if GPU else 0.0


def _told(name: str, found: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps({"check": name, **found}), flush=True)
    return found


def pixels(rendered: Rendered) -> str:
    (image,) = rendered.images
    return pixel_sha256(image)


if __name__ == "__main__":
    if "--poison" in sys.argv:
        # The interpreter's own end would ask the GPU once more.
        print(json.dumps(poison()), flush=True)
        os._exit(0)
    elif "--fresh" in sys.argv:
        print(json.dumps(fresh()))
    else:
        with tempfile.TemporaryDirectory() as place:
            print(json.dumps(check(Path(place), tiny="--tiny" in sys.argv)))
