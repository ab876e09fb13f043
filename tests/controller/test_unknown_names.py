"""A slip of the pen in a plan is told before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from corral.controller.images.unknown_names import unknown_names
from corral.core.images.pipeline import Hires, Lora, Record, Txt2Img, Upscale
from corral.core.worker import ImageServer, Worker
from tests.controller.shell import shell, worker
from tests.controller.test_plans import ANN, plans_of, sent

WEBUI = {
    "sampler": ("DPM++ 2M", "Euler a", "Euler"),
    "schedule": ("Automatic", "Karras", "SGM Uniform"),
    "VAE": ("soft.safetensors",),
    "LoRA": ("ink", "moody"),
    "upscaler": ("Lanczos", "R-ESRGAN 4x+"),
}
COMFYUI = {
    "sampler": ("euler", "euler_ancestral", "dpmpp_2m"),
    "schedule": ("normal", "karras"),
    "VAE": ("good.vae.safetensors",),
    "LoRA": ("styles/grain.safetensors",),
    "upscaler": ("4x-UltraSharp.pth", "lanczos"),
}
GOOD = Record(positive="x", model="sdxl", sampler="DPM++ 2M Karras", loras=(Lora("ink"),))


def renders(kind: str, names: dict[str, tuple[str, ...]], *models: str) -> Worker:
    made = worker(kind, workloads=("pipeline",), task_types=(kind, "render"), models_present=models)
    return replace(made, servers=(ImageServer(kind, f"http://{kind}", names=names),))


BOTH = (renders("webui", WEBUI, "sdxl", "sd15"), renders("comfyui", COMFYUI, "anime"))


def told(record: Record, *workers: Worker) -> list[str]:
    return unknown_names([(record, record.models)], workers or BOTH)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": "anime", "sampler": "k_euler_ancestral", "scheduler": "Automatic"},
        {"sampler": "", "scheduler": "karras", "vae": "soft"},
        {"vae": "Automatic", "loras": (Lora("grain"), Lora("Moody"))},
        {"stages": (Txt2Img(hires=Hires()), Upscale(upscaler="4x-UltraSharp"))},
        {"stages": (Txt2Img(), Upscale(upscaler="r-esrgan 4x+"))},
        {"backend": "sketch", "sampler": "nothing like it"},
    ],
)
def test_what_is_there_is_no_mistake(changes: dict[str, Any]) -> None:
    assert told(replace(GOOD, **changes)) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "sdxI"}, "No worker has the model 'sdxI'. Did you mean sdxl?"),
        ({"sampler": "eulr"}, "No image server has the sampler 'eulr'. Did you mean Euler"),
        ({"scheduler": "karas"}, "has the schedule 'karas'. Did you mean Karras?"),
        ({"vae": "sofd.safetensors"}, "the VAE 'sofd.safetensors'. Did you mean soft.safetensors?"),
        ({"loras": (Lora("inc"),)}, "the LoRA 'inc'. Did you mean ink?"),
        (
            {"stages": (Upscale(upscaler="zzz"),)},
            "'zzz'. There are Lanczos, R-ESRGAN 4x+, 4x-UltraSharp.pth and lanczos.",
        ),
        ({"stages": (Txt2Img(hires=Hires(upscaler="4x-UltraSharq")),)}, "mean 4x-UltraSharp.pth?"),
        ({"backend": "comfyui", "model": "anime"}, "the LoRA 'ink'. There is styles/grain."),
    ],
)
def test_a_mistake_is_told_with_what_is_near(changes: dict[str, Any], said: str) -> None:
    (complaint,) = told(replace(GOOD, **changes))
    assert said in complaint


def test_where_a_server_does_not_say_nothing_is_concluded() -> None:
    wrong = replace(GOOD, model="none of these", sampler="none of these")
    assert len(told(wrong)) == 2
    silent = renders("webui", {})
    assert told(wrong, *BOTH, silent) == []
    assert told(wrong, worker("nobody", workloads=("python",))) == []
    diffusers = replace(
        BOTH[0], capabilities=replace(BOTH[0].capabilities, task_types=("diffusers", "render"))
    )
    assert [one for one in told(wrong, diffusers) if "sampler" in one] == []


async def test_a_dry_run_tells_it(tmp_path: Path) -> None:
    async with shell(tmp_path, [BOTH[0]]) as corral:
        base = {"txt2img": {"model": "sdxl", "sampler": "Eulre", "width": 64, "height": 64}}
        plan = sent(base=base, backend="webui")
        built = await plans_of(corral, tmp_path).build(plan, "k", ANN)
        assert [one for one in built.warnings if "Eulre" in one] == [
            "No image server has the sampler 'Eulre'. Did you mean Euler or Euler a?"
        ]
