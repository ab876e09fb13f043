"""What a runner says to the agent: one JSON object per line on its real stdout."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from corral.core.frames import MetricValue
from corral.core.job import Blob, Failure, Size
from corral.protocol.messages import MOST_STREAM


class Frame(Struct, frozen=True, gc=False, tag_field="frame"):
    """Root of all frames; `frame` names the kind."""


class Ready(Frame, frozen=True, tag="ready"):
    pid: int = 0
    enforced: dict[str, str] = {}


class StartedFrame(Frame, frozen=True, tag="started"):
    """User code is about to run."""


class Fetching(Frame, frozen=True, tag="fetching"):
    """Something has to be fetched before user code can run."""


class OutputLine(Frame, frozen=True, tag="output"):
    stream: Annotated[str, Meta(max_length=MOST_STREAM)]
    text: str = ""
    data: bytes = b""


class ProgressLine(Frame, frozen=True, tag="progress"):
    fraction: float | None = None
    message: str = ""


class Metric(Frame, frozen=True, tag="metric"):
    values: dict[str, MetricValue]
    step: Annotated[int, Meta(ge=-(2**53), le=2**53)] | None = None


class ArtifactFrame(Frame, frozen=True, tag="artifact"):
    """Already stored by the job itself; the controller knows of it first."""

    name: str
    size: int = 0


class Checkpoint(Frame, frozen=True, tag="checkpoint"):
    """Already stored by the job itself."""

    sha256: str
    size: int = 0


class Result(Frame, frozen=True, tag="result"):
    result: Blob | None = None
    retire: bool = False


class ErrorFrame(Frame, frozen=True, tag="error"):
    failure: Failure
    retire: bool = False
    held_bytes: Size = 0
    """By a process of the job that was killed, at most."""


AnyFrame = (
    Ready
    | StartedFrame
    | Fetching
    | OutputLine
    | ProgressLine
    | Metric
    | ArtifactFrame
    | Checkpoint
    | Result
    | ErrorFrame
)

decode_lines = msgspec.json.Decoder(AnyFrame).decode_lines
