"""The diffusers backend with a tiny model on the CPU: pixels, samplers, LoRAs, failures."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoPipelineForText2Image, StableDiffusionPipeline
from msgspec.structs import replace
from PIL import Image as Images
from safetensors.torch import load_file, save_file

from corral import job
from corral.core.images.pipeline import (
    ADetailer,
    Hires,
    Img2Img,
    Lora,
    Refiner,
    Stage,
    Txt2Img,
    Upscale,
)
from corral.runtime.pipeline.diffusers import schedulers
from corral.runtime.pipeline.diffusers.backend import Diffusers
from corral.runtime.pipeline.images import pixel_sha256
from tests.in_torch import making, single_file
from tests.in_torch.telling import Tell
from tests.in_torch.warm import CASTLE, pixels, refused, render

# --- pixels --------------------------------------------------------------------------------------


def test_the_same_record_gives_the_same_pixels(backend: Diffusers) -> None:
    first, other = render(backend), pixels(backend, seed=6)
    again = Diffusers()
    assert first.images[0].size == (64, 64)
    assert pixel_sha256(first.images[0]) == pixels(backend) == pixels(again) != other
    again.close()


@pytest.mark.parametrize(
    "changed",
    [
        {"positive": "a tower"},
        {"negative": "sharp"},
        {"model": "other"},
        {"sampler": "euler a"},
        {"scheduler": "karras", "steps": 3},
        {"steps": 3},
        {"cfg_scale": 3.0},
        {"clip_skip": 2},
        {"width": 128},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_whatever_decides_a_pixel_is_seen(backend: Diffusers, changed: dict[str, Any]) -> None:
    same = {"steps": changed["steps"]} if "scheduler" in changed else {}
    assert pixels(backend, **changed) != pixels(backend, **same)


def test_images_of_one_pass_have_seeds_in_a_row(backend: Diffusers) -> None:
    three = render(backend, replace(CASTLE, batch_size=3, seed=2**32 - 1))
    assert three.seeds == [2**32 - 1, 0, 1]
    assert len({pixel_sha256(image) for image in three.images}) == 3
    again = render(backend, replace(CASTLE, batch_size=3, seed=2**32 - 1))
    assert list(map(pixel_sha256, three.images)) == list(map(pixel_sha256, again.images))


def test_img2img_keeps_more_with_less_denoise(backend: Diffusers) -> None:
    image = Images.linear_gradient("L").resize((64, 64)).convert("RGB")
    record = replace(CASTLE, steps=4)
    little = render(backend, record, Img2Img(denoise=0.25), (image,))
    much = render(backend, record, Img2Img(denoise=1.0), (image,))
    assert little.images[0].size == image.size
    assert pixel_sha256(little.images[0]) != pixel_sha256(much.images[0])
    again = render(backend, record, Img2Img(denoise=0.25), (image,))
    assert pixel_sha256(little.images[0]) == pixel_sha256(again.images[0])
    assert not little.loaded


def test_img2img_takes_images_of_several_sizes(backend: Diffusers) -> None:
    given = tuple(Images.new("RGB", size) for size in ((64, 64), (96, 64), (96, 64)))
    tell = Tell()
    made = render(backend, replace(CASTLE, batch_size=2), Img2Img(denoise=0.5), given, tell)
    assert [image.size for image in made.images] == [(64, 64), (96, 64), (96, 64)]
    assert made.seeds == [5, 6, 7]
    shares = [fraction for fraction, message in tell.told if message.startswith("step ")]
    assert shares == [pytest.approx(1 / 3), pytest.approx(1.0)]


def test_no_denoise_leaves_the_image_as_it_is(backend: Diffusers) -> None:
    image = Images.linear_gradient("L").convert("RGB")
    made = render(backend, CASTLE, Img2Img(denoise=0.0), (image,))
    assert pixel_sha256(made.images[0]) == pixel_sha256(image)


def test_upscale_is_pillows(backend: Diffusers) -> None:
    image = Images.linear_gradient("L").resize((32, 16)).convert("RGB")
    made = render(backend, CASTLE, Upscale(factor=1.5), (image,)).images[0]
    assert pixel_sha256(made) == pixel_sha256(image.resize((48, 24), Images.Resampling.LANCZOS))


def test_sdxl(backend: Diffusers, models: Path) -> None:
    making.make_xl(models / "xl")
    record = replace(CASTLE, model="xl", sampler="dpm++ 2m", steps=3)
    first, again, skipped = (
        render(backend, one) for one in (record, record, replace(record, clip_skip=2))
    )
    found = [pixel_sha256(one.images[0]) for one in (first, again, skipped)]
    assert found[0] == found[1] != found[2]
    two = render(backend, replace(record, batch_size=2), Img2Img(denoise=0.7), (*first.images,) * 2)
    assert len({pixel_sha256(image) for image in two.images}) == 2
    assert not two.loaded


# --- samplers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", [*schedulers.SAMPLERS, "DPM++ 2M Karras"])
def test_every_sampler_renders_the_same_twice(backend: Diffusers, sampler: str) -> None:
    made = render(backend, replace(CASTLE, sampler=sampler, steps=3))
    assert pixel_sha256(made.images[0]) == pixels(backend, sampler=sampler, steps=3)
    assert made.info["scheduler"] == schedulers.choose(sampler, "").kind


@pytest.mark.parametrize("schedule", schedulers.SCHEDULES)
def test_every_schedule_is_one_of_its_own(backend: Diffusers, schedule: str) -> None:
    record = replace(CASTLE, sampler="dpmpp_2m", steps=4)
    own = render(backend, replace(record, scheduler=schedule))
    automatic = render(backend, record)
    same = pixel_sha256(own.images[0]) == pixel_sha256(automatic.images[0])
    assert same is (schedule == "karras")  # what WebUI means by Automatic here


def test_a_sampler_leaves_nothing_to_the_next(backend: Diffusers) -> None:
    before = pixels(backend)
    pixels(backend, sampler="dpm++ 2m", scheduler="karras")
    assert pixels(backend) == before


@pytest.mark.parametrize(
    ("sampler", "scheduler"),
    [
        ("restart", ""),
        ("euler", "polyexponential"),
        ("euler", "simple"),
        ("euler a", "karras"),
        ("ddim", "karras"),
    ],
)
def test_an_unknown_sampler_or_schedule_is_named(
    backend: Diffusers, sampler: str, scheduler: str
) -> None:
    failed = refused(backend, replace(CASTLE, sampler=sampler, scheduler=scheduler))
    assert failed.code == "stage_missing"
    assert (scheduler or sampler) in failed.message


# --- models --------------------------------------------------------------------------------------


def test_one_model_is_kept_and_each_load_counted(backend: Diffusers) -> None:
    render(backend)
    loads = [render(backend, replace(CASTLE, model=name)).loaded for name in
             ("tiny.safetensors", "other", "other", "tiny")]  # fmt: skip
    assert loads == [False, True, False, True]


def test_two_models_are_kept_where_there_is_room(models: Path) -> None:
    both = Diffusers(models=2)
    names = ("tiny", "other", "tiny", "other")
    loads = [render(both, replace(CASTLE, model=name)).loaded for name in names]
    assert loads == [True, True, False, False]
    both.close()


def test_the_hash_is_that_which_workers_tell(backend: Diffusers, models: Path) -> None:
    """As docs/workers.md says of a folder."""
    made = render(backend)
    files = sorted(str(file) for file in (models / "tiny").rglob("*") if file.is_file())
    lines = [
        f"{os.path.relpath(file, models / 'tiny')} "
        f"{hashlib.sha256(Path(file).read_bytes()).hexdigest()}\n"
        for file in files
    ]
    assert made.info["models"] == {"tiny": hashlib.sha256("".join(lines).encode()).hexdigest()}
    assert made.info["versions"].keys() == {"torch", "transformers", "diffusers"}
    json.dumps(made.info)


def test_a_vae_of_its_own(backend: Diffusers, models: Path) -> None:
    shutil.copytree(models / "other" / "vae", models / "soft-vae", dirs_exist_ok=True)
    made = render(backend, replace(CASTLE, vae="soft-vae"))
    assert made.loaded
    assert made.info["models"].keys() == {"tiny", "soft-vae"}
    assert pixel_sha256(made.images[0]) != pixels(backend)
    assert pixels(backend, vae="Automatic") == pixels(backend)


def test_a_vae_of_another_kind_is_named(backend: Diffusers, models: Path) -> None:
    from diffusers import AutoencoderKL

    wide = AutoencoderKL(latent_channels=16, block_out_channels=(8,), norm_num_groups=8)
    wide.save_pretrained(str(models / "wide-vae"))
    failed = refused(backend, replace(CASTLE, vae="wide-vae"))
    assert failed.code == "bad_job"
    assert "wide-vae" in failed.message


@pytest.mark.parametrize(
    "changed",
    [{"model": "gone"}, {"vae": "gone"}, {"loras": (Lora("gone"),)}],
    ids=lambda changed: next(iter(changed)),
)
def test_what_is_not_there_is_named(backend: Diffusers, changed: dict[str, Any]) -> None:
    failed = refused(backend, replace(CASTLE, **changed))
    assert failed.code == "model_missing"
    assert "'gone'" in failed.message


def test_a_damaged_model_is_no_model(backend: Diffusers, models: Path) -> None:
    shutil.copytree(models / "tiny", models / "damaged", dirs_exist_ok=True)
    weights = models / "damaged" / "unet" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    failed = refused(backend, replace(CASTLE, model="damaged"))
    assert failed.code == "model_missing"
    assert "damaged" in failed.message


def test_a_pickle_is_not_loaded(backend: Diffusers, models: Path) -> None:
    (models / "old.ckpt").write_bytes(b"\x80\x04")
    failed = refused(backend, replace(CASTLE, model="old"))
    assert failed.code == "model_missing"
    assert "safetensors" in failed.message


def _without_weights(folder: Path, to: Path) -> None:
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("*.safetensors"), dirs_exist_ok=True)


def test_a_file_is_the_same_model_as_its_folder(backend: Diffusers, models: Path) -> None:
    single_file.save(models / "tiny", models / "one.safetensors", making.TINY)
    _without_weights(models / "tiny", models / "one.config")
    made = render(backend, replace(CASTLE, model="one"))
    assert made.loaded
    assert pixel_sha256(made.images[0]) == pixels(backend)
    weights = (models / "one.safetensors").read_bytes()
    assert made.info["models"] == {"one": hashlib.sha256(weights).hexdigest()}
    index = models / "one.config" / "model_index.json"
    told = index.read_text().replace("StableDiffusionPipeline", "StableDiffusionImg2ImgPipeline")
    index.write_text(told)  # as a refiner has it
    again = render(Diffusers(), replace(CASTLE, model="one"))
    assert pixel_sha256(again.images[0]) == pixel_sha256(made.images[0])


def test_a_file_without_its_settings_says_what_is_missing(backend: Diffusers, models: Path) -> None:
    single_file.save(models / "tiny", models / "alone.safetensors", making.TINY)
    failed = refused(backend, replace(CASTLE, model="alone"))
    assert failed.code == "model_missing"
    assert "alone.config" in failed.message
    origin = "stable-diffusion-v1-5/stable-diffusion-v1-5"
    assert origin in failed.message
    _without_weights(models / "tiny", models / origin)
    assert pixels(backend, model="alone") == pixels(backend)


def test_a_vae_in_a_file(backend: Diffusers, models: Path) -> None:
    save_file(single_file.vae(models / "other", making.TINY), str(models / "soft.safetensors"))
    shutil.copytree(models / "other" / "vae", models / "soft-vae", dirs_exist_ok=True)
    assert pixels(backend, vae="soft") == pixels(backend, vae="soft-vae") != pixels(backend)


# --- the way back --------------------------------------------------------------------------------


def test_every_step_is_told(backend: Diffusers) -> None:
    tell = Tell()
    render(backend, replace(CASTLE, steps=4), tell=tell)
    assert tell.steps == [f"step {n} of 4" for n in (1, 2, 3, 4)]
    fractions = [fraction for fraction, _ in tell.told]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


def test_a_cancel_ends_it_within_the_step(backend: Diffusers) -> None:
    before = pixels(backend)
    tell = Tell(lambda: len(tell.steps) >= 2)
    with pytest.raises(job.Cancelled):
        render(backend, replace(CASTLE, steps=1000), tell=tell)
    assert len(tell.steps) == 2
    after = render(backend)
    assert pixel_sha256(after.images[0]) == before
    assert not after.loaded


def test_a_cancel_in_the_middle_of_a_step(backend: Diffusers) -> None:
    """Before the first step ends: a step may take a minute on a slow machine."""
    render(backend)
    asked = iter(range(1 << 30))
    tell = Tell(lambda: next(asked) >= 0)
    with pytest.raises(job.Cancelled):
        render(backend, CASTLE, tell=tell)
    assert tell.steps == []


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        (ADetailer(), "ADetailer"),
        (Txt2Img(hires=Hires(denoise=0.0)), "denoise 0"),
        (Txt2Img(refiner=Refiner("other", 0.0)), "switch_at 0"),
    ],
    ids=("adetailer", "hires", "refiner"),
)
def test_what_it_cannot_do_is_said(backend: Diffusers, stage: Stage, words: str) -> None:
    failed = refused(backend, CASTLE, stage)
    assert failed.code == "stage_missing"
    assert words in failed.message


def test_an_unknown_upscaler_is_named(backend: Diffusers) -> None:
    wanted = "R-ESRGAN 4x+"
    for stage in (Upscale(upscaler=wanted), Txt2Img(hires=Hires(upscaler=wanted))):
        failed = refused(backend, CASTLE, stage)
        assert failed.code == "model_missing"
        assert "R-ESRGAN" in failed.message


def test_more_clip_skip_than_layers_is_a_bad_job(backend: Diffusers) -> None:
    assert refused(backend, replace(CASTLE, clip_skip=12)).code == "bad_job"


def test_no_model_is_a_bad_job(backend: Diffusers) -> None:
    assert refused(backend, replace(CASTLE, model="")).code == "bad_job"


def test_a_prompt_that_is_cut_off_is_said(backend: Diffusers) -> None:
    (warning,) = render(backend, replace(CASTLE, positive="castle " * 40)).warnings
    assert "77" in warning


NO_ROOM = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NO_ROOM, "out_of_memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED in cublasCreate"), "out_of_memory"),
        (torch.AcceleratorError("CUDA error: device-side assert triggered", 710), "backend_down"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), "backend_down"),
    ],
    ids=("memory", "cublas", "assert", "cudnn"),
)
def test_an_error_of_the_gpu_frees_what_it_held(
    backend: Diffusers, error: Exception, code: str
) -> None:
    """By the very exceptions that torch raises: no test has a card to fill."""

    def fail(*_: object) -> None:
        raise error

    with torch.nn.modules.module.register_module_forward_pre_hook(fail):
        failed = refused(backend)
    assert failed.code == code
    assert str(error).partition("\n")[0] in failed.message
    assert render(backend).loaded


@pytest.mark.parametrize("step", ["from_pretrained", "load_lora_weights"])
def test_no_memory_for_a_model_is_no_missing_model(
    models: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise NO_ROOM

    save_file({"x": torch.zeros(1)}, str(models / "any.safetensors"))
    fresh = Diffusers()
    with monkeypatch.context() as patched:
        patched.setattr(StableDiffusionPipeline, step, full)
        failed = refused(fresh, replace(CASTLE, loras=(Lora("any"),)))
    assert failed.code == "out_of_memory"
    assert render(fresh).loaded
    fresh.close()


def test_a_model_is_gone_before_the_next_one_comes(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at a time seldom fit on a card; also a refiner takes the place of its model."""
    load = AutoPipelineForText2Image.from_pretrained
    loaded: list[weakref.ref[Any]] = []
    left: list[int] = []

    def watched(*args: Any, **more: Any) -> Any:
        left.append(sum(unet() is not None for unet in loaded))
        pipe = load(*args, **more)
        loaded.append(weakref.ref(pipe.unet))
        return pipe

    monkeypatch.setattr(AutoPipelineForText2Image, "from_pretrained", watched)
    one = Diffusers()
    render(one, replace(CASTLE, model="other"))
    render(one, stage=Txt2Img(refiner=Refiner("other", 0.5), hires=Hires(1.25, denoise=0.5)))
    render(one, stage=Img2Img(), images=(Images.new("RGB", (64, 64)),))
    assert left == [0, 0, 0, 0]  # other, tiny, other, tiny
    one.close()
    assert all(unet() is None for unet in loaded)


def test_too_much_for_the_memory_of_the_machine(backend: Diffusers) -> None:
    """What torch itself says when a machine has no more."""
    render(backend)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 30), hard))
    try:
        failed = refused(backend, replace(CASTLE, width=8192, height=8192))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert failed.code == "out_of_memory"


def test_numbers_that_are_no_colours_are_not_an_image(backend: Diffusers, models: Path) -> None:
    shutil.copytree(models / "tiny", models / "broken", dirs_exist_ok=True)
    weights = models / "broken" / "vae" / "diffusion_pytorch_model.safetensors"
    state = load_file(str(weights))
    save_file(
        {name: torch.full_like(value, float("nan")) for name, value in state.items()},
        str(weights),
        metadata={"format": "pt"},
    )
    failed = refused(backend, replace(CASTLE, model="broken"))
    assert failed.code == "backend_mismatch"
    assert "NaN" in failed.message
