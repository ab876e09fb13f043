"""Diffusion pipelines with random weights from a fixed seed: real in all but what they learned."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from diffusers import (
    AutoencoderKL,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    PNDMScheduler,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    StableDiffusionXLImg2ImgPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from tokenizers.processors import TemplateProcessing
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    T5Config,
    T5EncoderModel,
    T5TokenizerFast,
)


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
    depth: tuple[int, ...] = ()
    """Of the attention in each block; empty: 1, and none in the last block."""


TINY = Size((16, 32), (8, 8, 16), 32, 4, 4, 1, 8, 16)
"""A few hundred kilobytes; its VAE makes four pixels of one."""
NOISE = {
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "steps_offset": 1,
}
FLOW_VAE = {"use_quant_conv": False, "use_post_quant_conv": False, "shift_factor": 0.06}
LARGE = Size((320, 640, 1280, 1280), (128, 256, 512, 512), 768, 12, 8, 2, 32, 64)
"""As large as Stable Diffusion 1.5."""
XL = Size((320, 640, 1280), (128, 256, 512, 512), 1024, 16, 16, 2, 32, 128, depth=(1, 2, 10))
"""As large as Stable Diffusion XL, but that its text encoders are two of a middle size."""


def make(folder: Path, size: Size = TINY, seed: int = 0, dtype: Any = torch.float32) -> Path:
    """A Stable Diffusion 1."""
    torch.manual_seed(seed)
    tokenizer = _tokenizer(folder)
    pipe = StableDiffusionPipeline(
        unet=_unet(size),
        vae=_vae(size),
        text_encoder=CLIPTextModel(_text(size, tokenizer)),
        tokenizer=tokenizer,
        scheduler=_scheduler(PNDMScheduler, skip_prk_steps=True, **NOISE),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    return _save(pipe, folder, dtype)


def make_xl(folder: Path, size: Size = TINY, seed: int = 0, dtype: Any = torch.float32) -> Path:
    """A Stable Diffusion XL: two text encoders, and a UNet that is told sizes."""
    torch.manual_seed(seed)
    tokenizer = _tokenizer(folder)
    pipe = StableDiffusionXLPipeline(
        unet=_unet(size._replace(width=2 * size.width), **_told(size, numbers=6)),
        vae=_vae(size),
        text_encoder=CLIPTextModel(_text(size, tokenizer)),
        text_encoder_2=CLIPTextModelWithProjection(_text(size, tokenizer)),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        scheduler=_scheduler(EulerDiscreteScheduler, **NOISE),
    )
    return _save(pipe, folder, dtype)


def make_refiner(
    folder: Path, size: Size = TINY, seed: int = 2, dtype: Any = torch.float32
) -> Path:
    """The second model of a Stable Diffusion XL: one text encoder, and told a score of beauty."""
    torch.manual_seed(seed)
    tokenizer = _tokenizer(folder)
    pipe = StableDiffusionXLImg2ImgPipeline(
        unet=_unet(size, **_told(size, numbers=5)),
        vae=_vae(size),
        text_encoder=None,
        text_encoder_2=CLIPTextModelWithProjection(_text(size, tokenizer)),
        tokenizer=None,
        tokenizer_2=tokenizer,
        scheduler=_scheduler(EulerDiscreteScheduler, **NOISE),
        requires_aesthetics_score=True,
    )
    return _save(pipe, folder, dtype)


def make_flow(folder: Path, seed: int = 0) -> Path:
    """A Stable Diffusion 3: a transformer trained by flow matching, here without its T5."""
    torch.manual_seed(seed)
    tokenizer = _tokenizer(folder)
    pipe = StableDiffusion3Pipeline(
        transformer=SD3Transformer2DModel(
            sample_size=TINY.sample,
            in_channels=4,
            out_channels=4,
            num_layers=1,
            attention_head_dim=8,
            num_attention_heads=4,
            caption_projection_dim=32,
            joint_attention_dim=2 * TINY.width,
            pooled_projection_dim=2 * TINY.width,
        ),
        vae=_vae(TINY, **FLOW_VAE),
        text_encoder=CLIPTextModelWithProjection(_text(TINY, tokenizer)),
        text_encoder_2=CLIPTextModelWithProjection(_text(TINY, tokenizer)),
        text_encoder_3=None,
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        tokenizer_3=None,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
    )
    return _save(pipe, folder, torch.float32)


def make_flux(folder: Path, seed: int = 0) -> Path:
    """A Flux: its latents are packed, its schedule is shifted by the size of the image."""
    torch.manual_seed(seed)
    tokenizer = _tokenizer(folder)
    t5 = _t5_tokenizer()
    pipe = FluxPipeline(
        transformer=FluxTransformer2DModel(
            in_channels=16,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=TINY.width,
            pooled_projection_dim=TINY.width,
            axes_dims_rope=(4, 4, 8),
            guidance_embeds=True,
        ),
        vae=_vae(TINY, **FLOW_VAE),
        text_encoder=CLIPTextModel(_text(TINY, tokenizer)),
        tokenizer=tokenizer,
        text_encoder_2=T5EncoderModel(
            T5Config(
                vocab_size=len(t5), d_model=TINY.width, d_kv=8, d_ff=64, num_layers=1, num_heads=4
            )
        ),
        tokenizer_2=t5,
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0),
    )
    return _save(pipe, folder, torch.float32)


def _told(size: Size, numbers: int) -> dict[str, Any]:
    about = 8
    return {
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": about,
        "projection_class_embeddings_input_dim": size.width + numbers * about,
    }


def _unet(size: Size, **more: Any) -> Any:
    count = len(size.unet)
    about = {
        "sample_size": size.sample,
        "in_channels": 4,
        "out_channels": 4,
        "layers_per_block": size.per_block,
        "block_out_channels": size.unet,
        "norm_num_groups": size.groups,
        "down_block_types": ("CrossAttnDownBlock2D",) * (count - 1) + ("DownBlock2D",),
        "up_block_types": ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * (count - 1),
        "cross_attention_dim": size.width,
        "attention_head_dim": 8,
    }
    if size.depth:
        about |= {
            "down_block_types": ("DownBlock2D",) + ("CrossAttnDownBlock2D",) * (count - 1),
            "up_block_types": ("CrossAttnUpBlock2D",) * (count - 1) + ("UpBlock2D",),
            "transformer_layers_per_block": size.depth,
            "attention_head_dim": tuple(width // 64 for width in size.unet),
            "use_linear_projection": True,
        }
    return UNet2DConditionModel(**about, **more)


def _vae(size: Size, **more: Any) -> Any:
    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        layers_per_block=size.per_block,
        block_out_channels=size.vae,
        norm_num_groups=size.groups,
        down_block_types=("DownEncoderBlock2D",) * len(size.vae),
        up_block_types=("UpDecoderBlock2D",) * len(size.vae),
        sample_size=size.sample,
        **more,
    )


def _text(size: Size, tokenizer: Any) -> Any:
    return CLIPTextConfig(
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


def _scheduler(kind: Any, **more: Any) -> Any:
    with torch.device("cpu"):  # also where weights are drawn on a GPU: it reckons with numpy
        return kind(**more)


def _save(pipe: Any, folder: Path, dtype: Any) -> Path:
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


def _t5_tokenizer() -> Any:
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    letters = [(chr(code), -1.0) for code in range(32, 127)]
    made = Tokenizer(Unigram([*vocabulary, *letters], unk_id=2))
    made.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return T5TokenizerFast(tokenizer_object=made, extra_ids=0, model_max_length=512)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
