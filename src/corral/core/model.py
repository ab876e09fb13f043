"""A model as a worker tells of it."""

from __future__ import annotations

from msgspec import Struct

from corral.core.job import Size


class Model(Struct, frozen=True, gc=False, omit_defaults=True):
    """A model on a worker's disk."""

    name: str
    size: Size = 0
    sha256: str = ""
    """Empty until it is known: a large file takes a while to read. Of a folder: of the list of
    its files and their digests."""
