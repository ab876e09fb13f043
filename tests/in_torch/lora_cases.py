"""LoRAs: of the UNet, of the text encoders, as diffusers names their weights and as others do."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import save_file

from corral.core.images.pipeline import Lora
from corral.runtime.pipeline.diffusers.backend import Diffusers
from corral.runtime.pipeline.images import pixel_sha256
from tests.in_torch import making
from tests.in_torch.warm import CASTLE, pixels, refused, render


@pytest.fixture(scope="session")
def lora(models: Path) -> str:
    """One that changes the attention of the tiny model."""
    from diffusers import StableDiffusionPipeline, UNet2DConditionModel
    from diffusers.utils import convert_state_dict_to_diffusers
    from peft import LoraConfig
    from peft.utils import get_peft_model_state_dict

    unet = UNet2DConditionModel.from_pretrained(str(models / "tiny"), subfolder="unet")
    torch.manual_seed(3)
    unet.add_adapter(
        LoraConfig(r=4, init_lora_weights=False, target_modules=["to_q", "to_k", "to_v"])
    )
    state = convert_state_dict_to_diffusers(get_peft_model_state_dict(unet))
    StableDiffusionPipeline.save_lora_weights(
        str(models), unet_lora_layers=state, weight_name="detail.safetensors"
    )
    return "detail"


def test_a_lora_counts_by_its_weight_and_leaves_nothing(backend: Diffusers, lora: str) -> None:
    before = pixels(backend)
    worn = render(backend, replace(CASTLE, loras=(Lora(lora),)))
    found = {
        before,
        pixel_sha256(worn.images[0]),
        pixels(backend, loras=(Lora(lora, 0.5),)),
    }
    assert len(found) == 3
    assert pixels(backend, loras=(Lora(lora),)) == pixel_sha256(worn.images[0])
    assert worn.info["models"].keys() == {"tiny", lora}
    assert pixels(backend) == before


def test_two_loras_at_a_time(backend: Diffusers, models: Path, lora: str) -> None:
    shutil.copy(models / f"{lora}.safetensors", models / "more.safetensors")
    both = pixels(backend, loras=(Lora(lora, 0.5), Lora("more", 0.25)))
    assert both not in (pixels(backend, loras=(Lora(lora, 0.5),)), pixels(backend))


def test_a_lora_of_another_model_is_named(backend: Diffusers, models: Path) -> None:
    save_file({"nobody.knows": torch.zeros(2)}, str(models / "wrong.safetensors"))
    failed = refused(backend, replace(CASTLE, loras=(Lora("wrong"),)))
    assert failed.code == "model_missing"
    assert "'wrong'" in failed.message
    assert pixels(backend) == pixels(backend)


def _of_text_encoder(models: Path) -> dict[str, Any]:
    """Weights for the attention of a tiny text encoder, with the names of transformers 5."""
    from peft import LoraConfig
    from peft.utils import get_peft_model_state_dict
    from transformers import CLIPTextModel

    encoder = CLIPTextModel.from_pretrained(str(models / "tiny" / "text_encoder"))
    torch.manual_seed(3)
    encoder.add_adapter(
        LoraConfig(r=4, init_lora_weights=False, target_modules=["q_proj", "v_proj", "out_proj"])
    )
    found: dict[str, Any] = get_peft_model_state_dict(encoder)
    return {name.removeprefix("text_model."): value for name, value in found.items()}


def _kohya(weights: dict[str, Any], encoder: str) -> dict[str, Any]:
    """As most of those in the world are named."""
    found = {}
    for name, value in weights.items():
        module, _, side = name.partition(".lora_")
        flat = f"lora_{encoder}_text_model_{module.replace('.', '_')}"
        found[f"{flat}.lora_{'down' if side[0] == 'A' else 'up'}.weight"] = value.clone()
        found[f"{flat}.alpha"] = torch.tensor(4.0)
    return found


def test_the_text_encoder_wears_it_too(backend: Diffusers, models: Path) -> None:
    weights = _of_text_encoder(models)
    named = {
        "words": {f"text_encoder.{name}": value for name, value in weights.items()},
        "words-4": {f"text_encoder.text_model.{name}": value for name, value in weights.items()},
        "words-kohya": _kohya(weights, "te"),
    }
    before, skipped = pixels(backend), pixels(backend, clip_skip=2)
    found = set()
    for name, state in named.items():
        save_file(state, str(models / f"{name}.safetensors"))
        found.add(pixels(backend, loras=(Lora(name),)))
    assert len(found) == 1
    assert not found & {before, pixels(backend, loras=(Lora("words", 0.5),))}
    assert pixels(backend) == before
    assert pixels(backend, clip_skip=2) == skipped


def test_both_text_encoders_of_sdxl(backend: Diffusers, models: Path) -> None:
    making.make_xl(models / "xl")
    first, second = (_kohya(_of_text_encoder(models), name) for name in ("te1", "te2"))
    save_file({**first, **second}, str(models / "both.safetensors"))
    save_file(second, str(models / "one.safetensors"))
    worn = [(), (Lora("both"),), (Lora("one"),)]
    assert len({pixels(backend, model="xl", loras=loras) for loras in worn}) == 3


def test_one_for_parts_that_the_model_lacks_is_named(backend: Diffusers, models: Path) -> None:
    sides = {f"transformer.x.lora_{side}.weight": torch.zeros(4, 4) for side in "AB"}
    save_file(sides, str(models / "flux-only.safetensors"))
    failed = refused(backend, replace(CASTLE, loras=(Lora("flux-only"),)))
    assert failed.code == "model_missing"
    assert "None of its weights" in failed.message


def test_of_two_with_one_name_the_first_counts(backend: Diffusers, models: Path, lora: str) -> None:
    for folder in ("a", "b"):
        (models / folder).mkdir()
        shutil.copy(models / f"{lora}.safetensors", models / folder / "paired.safetensors")
    said = "a/paired.safetensors counts, not b/paired.safetensors"
    record = replace(CASTLE, loras=(Lora("paired"),))
    for _ in range(2):  # also where it is worn already
        (warning,) = render(backend, record).warnings
        assert said in warning
    save_file({"nobody.knows": torch.zeros(2)}, str(models / "a" / "paired.safetensors"))
    assert said in refused(backend, record).message  # the new file, not what was worn
    assert render(backend).warnings == []
