"""Stands for torch, transformers and diffusers where a GPU fails in the first step."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

nn, backends, cuda, utils = MagicMock(), MagicMock(), MagicMock(), MagicMock()
cuda.is_available.return_value = False
nn.modules.module.register_module_forward_pre_hook.return_value = contextlib.nullcontext()
Generator = MagicMock()
float32 = "float32"


class OutOfMemoryError(RuntimeError):
    pass


class Pipe:
    def __init__(self) -> None:
        self.scheduler = SimpleNamespace(config={})
        self.vae = SimpleNamespace(dtype=float32)
        self.vae_scale_factor = 8

    def set_progress_bar_config(self, **_: Any) -> None:
        pass

    def to(self, _: str) -> None:
        pass

    def __call__(
        self,
        prompt: str,
        guidance_scale: float,
        callback_on_step_end: Any,
        **_: Any,
    ) -> None:
        raise RuntimeError(
            "CUDA error: device-side assert triggered\n"
            "CUDA kernel errors might be asynchronously reported at some other API call."
        )


class AutoPipelineForText2Image:
    @staticmethod
    def from_pretrained(_: str, **__: Any) -> Pipe:
        return Pipe()


class EulerDiscreteScheduler:
    order = 1

    @classmethod
    def from_config(cls, _: dict[str, Any], **__: Any) -> EulerDiscreteScheduler:
        return cls()
