"""Between two stages: what is done, so that a retry anywhere goes on with the next one.

A checkpoint may have been written on another machine, so it is data and never a pickle.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from PIL.Image import Image

from corral import job
from corral.runtime.files.transfer import NotThere, Transfer, TransferRefused
from corral.runtime.pipeline import images

MOST_BYTES = 2 << 30
MOST_IMAGES = 512


class StageReport(Struct, frozen=True):
    """How long a stage took: the backend alone, and all that the slot was held for."""

    stage: str
    backend: str
    seconds: float
    slot_seconds: float
    loaded: bool = False
    """A model was loaded for it."""


class Done(Struct):
    """What the stages so far have left."""

    record_digest: str
    backend: str = ""
    seeds: list[int] = []
    info: dict[str, Any] = {}
    warnings: list[str] = []
    stages: list[StageReport] = []
    pngs: Annotated[list[bytes], Meta(max_length=MOST_IMAGES)] = []


_decode = msgspec.msgpack.Decoder(Done).decode


def save(done: Done, made: list[Image], transfer: Callable[[], Transfer]) -> None:
    done.pngs = [images.to_png(image) for image in made]
    data = msgspec.msgpack.encode(done)
    done.pngs = []
    try:
        sha256, size = transfer().put_checkpoint(io.BytesIO(data), len(data))
    except TransferRefused as error:
        done.warnings.append(f"A checkpoint was not kept, so a retry begins anew: {error}")
        return
    job._say("checkpoint", sha256=sha256, size=size)


def load(
    sha256: str, record_digest: str, transfer: Callable[[], Transfer]
) -> tuple[Done, list[Image]]:
    """What earlier attempts have done; nothing where there is none, or none of this record."""
    nothing = Done(record_digest)
    if not sha256:
        return nothing, []
    held = _Held()
    try:
        transfer().checkpoint(sha256, held)
        done = _decode(held.getvalue())
        made = [images.from_bytes(png) for png in done.pngs]
    except (NotThere, msgspec.MsgspecError, OSError, _TooLong):
        return nothing, []
    done.pngs = []
    return (done, made) if done.record_digest == record_digest and made else (nothing, [])


class _TooLong(Exception):
    """No OSError: what was only interrupted is fetched again."""


class _Held(io.BytesIO):
    """A checkpoint up to its limit: another worker wrote it, and may have meant no good."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > MOST_BYTES:
            raise _TooLong
        return super().write(data)
