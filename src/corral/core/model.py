"""A model as a worker tells of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

from corral.core.job import Size

MOST_MODELS = 10_000
"""Models that a worker tells of; a folder with more is not meant as one of models."""
NAMES_BYTES = 1 << 20
"""Of all names together that are kept of one worker: everybody's list shows them."""
ModelName = Annotated[str, Meta(max_length=4096)]
ModelNames = Annotated[tuple[ModelName, ...], Meta(max_length=MOST_MODELS)]


class Model(Struct, frozen=True, gc=False, omit_defaults=True):
    """A model on a worker's disk."""

    name: ModelName
    size: Size = 0
    sha256: Annotated[str, Meta(max_length=64)] = ""
    """Empty until it is known: a large file takes a while to read. Of a folder: of the list of
    its files and their digests."""


def kept(names: Iterable[str]) -> int:
    """How many of these names are kept: the first ones."""
    count = size = 0
    for name in names:
        size += len(name) if name.isascii() else len(name.encode())
        if size > NAMES_BYTES:
            break
        count += 1
    return count
