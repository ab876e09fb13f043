"""What a running job writes and tells, as it is kept in the spool and streamed to watchers."""

from __future__ import annotations

from itertools import islice
from typing import Literal

import msgspec
from msgspec import Struct

from corral.core.malformed import MALFORMED


def told_by(text: str, data: bytes) -> int:
    """What a piece of output adds to the running number of its attempt: its bytes. Progress and
    metrics add one. So two numbers say what lies between them, and what of that is missing."""
    return max(1, (len(text) if text.isascii() else len(text.encode())) + len(data))


MetricValue = float | Literal["NaN", "Infinity", "-Infinity"]
"""As JSON can say it. `float` reads all of them."""


class OutputFrame(
    Struct, frozen=True, gc=False, tag="output", tag_field="frame", omit_defaults=True
):
    """Bytes on stdout or stderr: `text` where they are UTF-8, `data` where they are not."""

    at: float
    stream: str
    text: str = ""
    data: bytes = b""
    n: int = 0
    """How much its attempt had told with it: see `told_by`. 0 where an older worker did not say."""

    @property
    def told(self) -> int:
        return told_by(self.text, self.data)


class ProgressFrame(
    Struct, frozen=True, gc=False, tag="progress", tag_field="frame", omit_defaults=True
):
    at: float
    fraction: float | None = None
    message: str = ""
    metrics: dict[str, MetricValue] = {}
    step: int | None = None
    n: int = 0

    @property
    def told(self) -> int:
        return 1


Frame = OutputFrame | ProgressFrame


MOST_METRICS = 1_000
"""Names of metrics that are remembered of one attempt; all of them are in its stream."""


def latest(known: ProgressFrame | None, told: ProgressFrame) -> ProgressFrame:
    """All that is known after one more word: what it does not mention stays."""
    if known is None:
        return told
    if told.n and told.n <= known.n:
        return known  # it was sent again
    spoken = told.fraction is not None or told.message
    return ProgressFrame(
        at=told.at,
        fraction=told.fraction if told.fraction is not None else known.fraction,
        message=told.message if spoken else known.message,
        metrics=_with(known.metrics, told.metrics),
        step=told.step if told.step is not None else known.step,
        n=told.n,
    )


def _with(known: dict[str, MetricValue], told: dict[str, MetricValue]) -> dict[str, MetricValue]:
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
