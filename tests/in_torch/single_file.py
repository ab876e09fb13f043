"""A tiny model as one file, with the names that Stable Diffusion 1 gave its weights at first."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from tests.in_torch.making import Size

WEIGHTS = "diffusion_pytorch_model.safetensors"
RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "time_emb_proj": "emb_layers.1",
    "conv_shortcut": "skip_connection",
}
WHOLE = {
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "conv_in": "input_blocks.0.0",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}
ATTENTION = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}


def save(folder: Path, file: Path, size: Size) -> Path:
    """From a folder of diffusers, whose model has this size."""
    blocks, per_block = len(size.unet), size.per_block
    found: dict[str, Any] = {}
    for name, value in load_file(str(folder / "unet" / WEIGHTS)).items():
        found[f"model.diffusion_model.{_unet(name, blocks, per_block)}"] = value
    found |= vae(folder, size, "first_stage_model.")
    for name, value in load_file(str(folder / "text_encoder" / "model.safetensors")).items():
        inner = name if name.startswith("text_model.") else f"text_model.{name}"
        found[f"cond_stage_model.transformer.{inner}"] = value
    save_file({name: value.contiguous() for name, value in found.items()}, str(file))
    return file


def vae(folder: Path, size: Size, prefix: str = "") -> dict[str, Any]:
    found = {}
    for name, value in load_file(str(folder / "vae" / WEIGHTS)).items():
        new = _vae(name, len(size.vae))
        if ".attn_1." in new and not new.endswith((".bias", "norm.weight")):
            value = value[:, :, None, None]
        found[prefix + new] = value.contiguous()
    return found


def _unet(name: str, blocks: int, per_block: int) -> str:
    module, _, leaf = name.rpartition(".")
    if module in WHOLE:
        return f"{WHOLE[module]}.{leaf}"
    side, block, kind, layer, rest = re.match(  # type: ignore[union-attr]
        r"(down|mid|up)_blocks?(?:\.(\d+))?\.(\w+)\.(\d+)\.(.*)", name
    ).groups()
    i, j = int(block or 0), int(layer)
    if kind == "resnets":
        inside, _, leaf = rest.rpartition(".")
        rest = f"{RESNET[inside]}.{leaf}"
    elif kind.endswith("samplers"):
        rest = rest.replace("conv.", "op.") if side == "down" else rest
    if side == "mid":
        return f"middle_block.{2 * j if kind == 'resnets' else 1}.{rest}"
    if side == "down":
        place = (per_block + 1) * (i + 1) if kind == "downsamplers" else (per_block + 1) * i + j + 1
        return f"input_blocks.{place}.{int(kind == 'attentions')}.{rest}"
    place = (per_block + 1) * i + (per_block if kind == "upsamplers" else j)
    part = {"resnets": 0, "attentions": 1, "upsamplers": 1 if i == 0 else 2}[kind]
    return f"output_blocks.{place}.{part}.{rest}"


def _vae(name: str, blocks: int) -> str:
    for old, new in (
        (r"conv_shortcut", "nin_shortcut"),
        (r"conv_norm_out", "norm_out"),
        (r"mid_block\.resnets\.(\d)", lambda found: f"mid.block_{int(found[1]) + 1}"),
        (r"mid_block\.attentions\.0", "mid.attn_1"),
        (r"down_blocks\.(\d)\.resnets", r"down.\1.block"),
        (r"down_blocks\.(\d)\.downsamplers\.0", r"down.\1.downsample"),
        (r"up_blocks\.(\d)\.resnets", lambda found: f"up.{blocks - 1 - int(found[1])}.block"),
        (
            r"up_blocks\.(\d)\.upsamplers\.0",
            lambda found: f"up.{blocks - 1 - int(found[1])}.upsample",
        ),
    ):
        name = re.sub(old, new, name)
    if ".attn_1." in name:
        head, _, rest = name.partition(".attn_1.")
        inside, _, leaf = rest.rpartition(".")
        name = f"{head}.attn_1.{ATTENTION[inside]}.{leaf}"
    return name
