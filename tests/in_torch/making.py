"""Diffusion pipelines with random weights from a fixed seed: real in all but what they learned."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from diffusers import (
    AutoencoderKL,
    PNDMScheduler,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer


class Size(NamedTuple):
    unet: tuple[int, ...]
    vae: tuple[int, ...]
    width: int
    """Of the text encoder."""
    layers: int
    heads: int
    per_block: int
    groups: int
    sample: int


TINY = Size((16, 32), (8, 16), 32, 4, 4, 1, 8, 32)
"""A few hundred kilobytes; its VAE makes two pixels of one."""
LARGE = Size((320, 640, 1280, 1280), (128, 256, 512, 512), 768, 12, 8, 2, 32, 64)
"""As large as Stable Diffusion 1.5."""


def make(folder: Path, size: Size = TINY, seed: int = 0, dtype: Any = torch.float32) -> Path:
    torch.manual_seed(seed)
    count = len(size.unet)
    unet = UNet2DConditionModel(
        sample_size=size.sample,
        in_channels=4,
        out_channels=4,
        layers_per_block=size.per_block,
        block_out_channels=size.unet,
        norm_num_groups=size.groups,
        down_block_types=("CrossAttnDownBlock2D",) * (count - 1) + ("DownBlock2D",),
        up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * (count - 1),
        cross_attention_dim=size.width,
        attention_head_dim=8,
    )
    vae = AutoencoderKL(
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        layers_per_block=size.per_block,
        block_out_channels=size.vae,
        norm_num_groups=size.groups,
        down_block_types=("DownEncoderBlock2D",) * len(size.vae),
        up_block_types=("UpDecoderBlock2D",) * len(size.vae),
        sample_size=size.sample,
    )
    tokenizer = _tokenizer(folder)
    text = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=size.width,
            intermediate_size=size.width * 4,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            max_position_embeddings=77,
            initializer_factor=1.0 if size.width > 100 else 5.0,  # so that each layer is seen
            projection_dim=size.width,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    pipe = StableDiffusionPipeline(
        unet=unet,
        vae=vae,
        text_encoder=text,
        tokenizer=tokenizer,
        scheduler=PNDMScheduler(
            beta_schedule="scaled_linear",
            beta_start=0.00085,
            beta_end=0.012,
            skip_prk_steps=True,
            steps_offset=1,
        ),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    if dtype != torch.float32:
        pipe.to(dtype=dtype)
    pipe.save_pretrained(str(folder), safe_serialization=True)
    return folder


def _tokenizer(folder: Path) -> Any:
    """Letters alone, each as a token: enough to tell prompts apart."""
    letters = [chr(code) for code in range(33, 127)]
    words = [*letters, *(f"{letter}</w>" for letter in letters)]
    vocabulary = {word: place for place, word in enumerate(words)}
    for special in ("<|startoftext|>", "<|endoftext|>"):
        vocabulary[special] = len(vocabulary)
    written = folder / "tokenizer"
    written.mkdir(parents=True, exist_ok=True)
    (written / "vocab.json").write_text(json.dumps(vocabulary))
    (written / "merges.txt").write_text("#version: 0.2\n")
    (written / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "CLIPTokenizer",
                "model_max_length": 77,
                "bos_token": "<|startoftext|>",
                "eos_token": "<|endoftext|>",
                "unk_token": "<|endoftext|>",
                "pad_token": "<|endoftext|>",
            }
        )
    )
    return CLIPTokenizer.from_pretrained(str(written))


if __name__ == "__main__":
    make(Path(sys.argv[1]))
