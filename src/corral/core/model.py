"""Models by name: what jobs ask for and what workers have on their disks."""

from __future__ import annotations

import re

from msgspec import Struct

SUFFIXES = (".safetensors", ".ckpt", ".pt", ".pth", ".gguf", ".onnx", ".bin")

_HASH = re.compile(r"\s*\[[0-9a-fA-F]+\]$")


class Model(Struct, frozen=True, gc=False, omit_defaults=True):
    """A model on a worker's disk."""

    name: str
    size: int = 0
    sha256: str = ""
    """Empty until it is known: a large file takes a while to read. Of a folder: of the list of
    its files and their digests."""


def model_name(text: str) -> str:
    """The name alone. Programs write it in several ways, and all of them mean one model.

    >>> model_name("sdxl_1.0.safetensors [31e35c80fc]"), model_name("org/llama-3.1")
    ('sdxl_1.0', 'org/llama-3.1')
    """
    name = _HASH.sub("", text.strip())
    for suffix in SUFFIXES:
        if name.lower().endswith(suffix):
            return name[: -len(suffix)]
    return name
