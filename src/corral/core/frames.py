"""What a running job writes and tells, as it is kept in the spool and streamed to watchers."""

from __future__ import annotations

import msgspec
from msgspec import Struct


class OutputFrame(
    Struct, frozen=True, gc=False, tag="output", tag_field="frame", omit_defaults=True
):
    """Bytes on stdout or stderr: `text` where they are UTF-8, `data` where they are not."""

    at: float
    stream: str
    text: str = ""
    data: bytes = b""


class ProgressFrame(
    Struct, frozen=True, gc=False, tag="progress", tag_field="frame", omit_defaults=True
):
    at: float
    fraction: float | None = None
    message: str = ""
    metrics: dict[str, float] = {}
    step: int | None = None


Frame = OutputFrame | ProgressFrame


def latest(known: ProgressFrame | None, told: ProgressFrame) -> ProgressFrame:
    """All that is known after one more word: what it does not mention stays."""
    if known is None:
        return told
    spoken = told.fraction is not None or told.message
    return ProgressFrame(
        at=told.at,
        fraction=told.fraction if told.fraction is not None else known.fraction,
        message=told.message if spoken else known.message,
        metrics={**known.metrics, **told.metrics},
        step=told.step if told.step is not None else known.step,
    )


encode_frame = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[Frame] = msgspec.json.Decoder(Frame)


def decode_frame(line: bytes) -> Frame | None:
    """None for a line that a power cut tore."""
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError:
        return None
