"""What a running job writes and tells, as it is kept in the spool and streamed to watchers."""

from __future__ import annotations

from itertools import islice

import msgspec
from msgspec import Struct

from corral.core.malformed import MALFORMED


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


MOST_METRICS = 1_000
"""Names of metrics that are remembered of one attempt; all of them are in its stream."""


def latest(known: ProgressFrame | None, told: ProgressFrame) -> ProgressFrame:
    """All that is known after one more word: what it does not mention stays."""
    if known is None:
        return told
    spoken = told.fraction is not None or told.message
    return ProgressFrame(
        at=told.at,
        fraction=told.fraction if told.fraction is not None else known.fraction,
        message=told.message if spoken else known.message,
        metrics=_with(known.metrics, told.metrics),
        step=told.step if told.step is not None else known.step,
    )


def _with(known: dict[str, float], told: dict[str, float]) -> dict[str, float]:
    if not told:
        return known
    if len(known) < MOST_METRICS:
        return dict(islice({**known, **told}.items(), MOST_METRICS))
    news = {name: value for name, value in told.items() if name in known}
    return {**known, **news} if news else known


encode_frame = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[Frame] = msgspec.json.Decoder(Frame)


def decode_frame(line: bytes) -> Frame | None:
    """None for a line that a power cut tore."""
    try:
        return _decoder.decode(line)
    except MALFORMED:
        return None
