"""The attempts' door: what a process that runs one attempt by itself tells, and is answered.

JSON over HTTP with a token of its own. What an attempt tells is numbered as in the spool (see
`core.frames.told_by`): a batch says how far its sender knows itself received, and counts on.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from corral.core.frames import MetricValue, told_by
from corral.core.job import Blob, Failure, Size
from corral.core.worker import MOST_GPUS, Word
from corral.protocol.messages import MOST_STREAM

MOST_MESSAGES = 1_000
"""Of one batch."""
MOST_BYTES = 4 << 20
"""Of one batch: the longest traceback with the exception itself is a quarter of it."""
LONGEST_WAIT_S = 20.0
"""How long an answer may be waited for when there is nothing to say."""


class AttemptMessage(Struct, frozen=True, gc=False, tag_field="type", forbid_unknown_fields=True):
    @property
    def told(self) -> int:
        """What it adds to the number of its attempt."""
        return 0


class BeganMessage(AttemptMessage, frozen=True, tag="began"):
    """User code is about to run."""

    at: float
    devices: Annotated[tuple[Word, ...], Meta(max_length=MOST_GPUS)] = ()


class OutputMessage(AttemptMessage, frozen=True, tag="output"):
    """Bytes on stdout or stderr: `text` where they are UTF-8, `data` where they are not."""

    stream: Annotated[str, Meta(max_length=MOST_STREAM)]
    text: str = ""
    data: bytes = b""

    @property
    def told(self) -> int:
        return told_by(self.text, self.data)


class ProgressMessage(AttemptMessage, frozen=True, tag="progress"):
    fraction: Annotated[float, Meta(ge=0, le=1)] | None = None
    message: str = ""
    metrics: dict[str, MetricValue] = {}
    step: Annotated[int, Meta(ge=-(2**53), le=2**53)] | None = None

    @property
    def told(self) -> int:
        return 1


class MissingMessage(AttemptMessage, frozen=True, tag="missing"):
    """Received once and not there any more, after a power cut for one: readers are told so."""

    size: Size

    @property
    def told(self) -> int:
        return self.size


class EndedMessage(AttemptMessage, frozen=True, tag="ended"):
    """With a result, or with a failure that says how. Nothing follows it."""

    at: float
    seconds: float
    digest: str
    result: Blob | None = None
    failure: Failure | None = None


AnyAttemptMessage = BeganMessage | OutputMessage | ProgressMessage | MissingMessage | EndedMessage


class AttemptMessages(Struct, frozen=True, forbid_unknown_fields=True):
    """A batch. One without messages only asks, and may wait for something to be answered."""

    after: Size = 0
    """The number up to which its sender knows itself received."""
    process: Annotated[str, Meta(max_length=64)] = ""
    """Drawn by each process: of two that were started for one attempt the first to tell goes on."""
    messages: Annotated[tuple[AnyAttemptMessage, ...], Meta(max_length=MOST_MESSAGES)] = ()
    wait_s: Annotated[float, Meta(ge=0, le=LONGEST_WAIT_S)] = 0.0


class AskedToEnd(Struct, frozen=True):
    grace_s: float


class AttemptAnswer(Struct, frozen=True, omit_defaults=True):
    received: int
    """Everything up to this number is on disk; what is sent next begins behind it."""
    cancel: AskedToEnd | None = None
    duration_s: float = 0.0
    """How long it may run, where that is more than its order said."""
