"""The replay card that lies beside each image: everything needed to render it again, and to say
whether the pixels are the same.
"""

from __future__ import annotations

import platform
from typing import Any

import msgspec
import PIL
from msgspec import Struct

from corral import __version__


class StageReport(Struct, frozen=True):
    """How long a stage took: the backend alone, and all that the slot was held for."""

    stage: str
    backend: str
    seconds: float
    slot_seconds: float
    loaded: bool = False
    """A model was loaded for it."""


class Card(Struct):
    name: str
    index: int
    job: str
    attempt: int
    record: dict[str, Any]
    """With every default, so that it is read without knowing any."""
    record_digest: str
    seed: int
    size: tuple[int, int]
    pixel_sha256: str
    file_sha256: str
    backend: str
    models: dict[str, str]
    """Hashes of what the backend really used, by name."""
    worker: str
    driver: str
    software: dict[str, str]
    stages: list[StageReport]
    warnings: list[str] = []
    info: dict[str, Any] = {}
    """What else the backend said of itself."""


def software(versions: dict[str, str]) -> dict[str, str]:
    return {
        "corral": __version__,
        "python": platform.python_version(),
        "pillow": PIL.__version__,
        **{str(name): str(version) for name, version in versions.items()},
    }


def encode_card(card: Card) -> bytes:
    return msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n"
