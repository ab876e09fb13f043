"""A record as a pipeline of diffusers takes it, and what of it the model does not read."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from corral.core.images.pipeline import Record
from corral.runtime.pipeline.backend import StageFailed


def said_of(pipe: Any, record: Record) -> dict[str, Any]:
    """The record as arguments of the pipeline; StageFailed where it has no such argument."""
    known = inspect.signature(pipe.__call__).parameters
    said: dict[str, Any] = {"prompt": record.positive, "guidance_scale": record.cfg_scale}
    if record.negative and not _is_distilled(pipe):
        said["negative_prompt"] = record.negative
    if record.clip_skip > 1:
        said["clip_skip"] = record.clip_skip - 1  # WebUI's 1 skips nothing
    for name in ("callback_on_step_end", *said):
        if name not in known:
            raise StageFailed(
                "stage_missing", f"{type(pipe).__name__} of this diffusers has no {name}."
            )
    if record.clip_skip > 1:
        layers = pipe.text_encoder.config.num_hidden_layers
        if record.clip_skip > layers:
            raise StageFailed(
                "bad_job", f"clip_skip {record.clip_skip}: the text encoder has {layers} layers."
            )
    return said


def _is_distilled(pipe: Any) -> bool:
    """Such models, Flux for one, take guidance as a number that they read and not by a second
    look at the image; that second look is an option of their pipelines."""
    return "true_cfg_scale" in inspect.signature(pipe.__call__).parameters


def warnings_of(pipe: Any, record: Record) -> list[str]:
    found = []
    if _is_distilled(pipe):
        if record.negative:
            found.append("The model reads no negative prompt.")
        if not pipe.transformer.config.guidance_embeds:
            found.append("The model has no guidance: cfg_scale changes nothing.")
    for name, prompt in (("prompt", record.positive), ("negative prompt", record.negative)):
        counts = [
            (limit, len(tokenizer(prompt, truncation=False).input_ids))
            for tokenizer, limit in _readers(pipe)
        ]
        limit, count = max(counts, default=(0, 0))
        if count > limit:
            found.append(f"The {name} has {count} tokens; the model reads {limit}.")
    return found


def _readers(pipe: Any) -> Iterator[tuple[Any, int]]:
    """Its tokenizers, and how many tokens of each it reads. T5 reads as far as the pipeline says,
    beyond what CLIP does."""
    long = inspect.signature(pipe.__call__).parameters.get("max_sequence_length")
    for name in ("tokenizer", "tokenizer_2", "tokenizer_3"):
        tokenizer = getattr(pipe, name, None)
        if tokenizer is not None:
            if long is not None and "T5" in type(tokenizer).__name__:
                yield tokenizer, long.default
            else:
                yield tokenizer, tokenizer.model_max_length
