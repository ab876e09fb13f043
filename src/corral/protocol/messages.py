"""Every message between controller and agent. One WebSocket frame is a JSON list of messages.

Every message about an attempt carries its number: that is the fence against late and doubled
messages. Messages of an unknown type are refused. Fields that the other side does not know yet are
passed over, so that a field with a default may be added at any time; whatever must be understood
to be right is a new version (docs/decisions/0028).
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import astuple

from corral.core.frames import MetricValue
from corral.core.job import Assignment, Blob, Failure, JobId
from corral.core.worker import (
    MOST_GPUS,
    MOST_MODELS,
    MOST_WORDS,
    Capabilities,
    Gigabytes,
    ImageServer,
    Model,
    ModelNames,
    Name,
    Reading,
    Withdrawn,
    Word,
    Words,
)

VERSION = "1"
COMPATIBLE: dict[str, str] = {"1": "0.1.0"}
"""Versions of `runner_protocol` that this controller works with, and the first Corral of each."""

Version = Annotated[str, Meta(max_length=256)]
"""Longer ones are no versions, and Python reads no number of thousands of digits."""

CLOSE_MALFORMED = 4400
CLOSE_UNAUTHORIZED = 4401
CLOSE_REVOKED = 4403
CLOSE_INCOMPATIBLE = 4426
CLOSE_REPLACED = 4409
CLOSE_OUT_OF_ORDER = 4428
"""Another message before WorkerRegister, or a second WorkerRegister."""
CLOSE_STOPPING = 4503


MOST_ATTEMPTS, MOST_STREAM = 100_000, 16
MOST_MESSAGES = 4_096
"""In a frame of a worker, which puts 512 into one: each is heard before anybody else is."""
Count = Annotated[int, Meta(ge=0, le=1 << 31)]
Number = Annotated[int, Meta(ge=0, le=1 << 50)]
"""How much an attempt has told so far, in bytes (`core.frames.told_by`); 0 of older workers."""
Models = Annotated[tuple[Model, ...], Meta(max_length=MOST_MODELS)]
Readings = Annotated[tuple[Reading, ...], Meta(max_length=MOST_GPUS)]
Servers = Annotated[tuple[ImageServer, ...], Meta(max_length=MOST_WORDS)]


class Message(
    Struct,
    frozen=True,
    gc=False,
    tag=True,
    tag_field="type",
    omit_defaults=True,
):
    """Root of all messages; `type` is the class name."""


class JobMessage(Message, frozen=True):
    job: JobId
    attempt: int


# --- worker -> controller ----------------------------------------------------------------------


class WorkerRegister(Message, frozen=True):
    worker_id: Word
    software_version: Word
    runner_protocol: Version
    capabilities: Capabilities
    name: Name = ""
    gpu_name: Word = ""
    vram_gb: Gigabytes = 0.0
    max_batch: Count = 1
    supported_models: ModelNames = ()
    attempts: Annotated[tuple[tuple[Word, Count], ...], Meta(max_length=MOST_ATTEMPTS)] = ()
    """Attempts this worker still has, running or waiting, and results not yet received."""
    incarnation: Word = ""
    """The same for as long as it has forgotten nothing: until its process ends."""
    leftovers: Count = 0
    """Processes of an agent before this one that it found and ended."""
    models: Models = ()
    """What is on its disk, so far as it has looked; a heartbeat tells what changes."""
    models_loaded: ModelNames = ()
    readings: Readings = ()
    servers: Servers = ()
    """The image servers that it renders with; a heartbeat tells what changes."""
    withdrawn: Withdrawn = Withdrawn()
    """Of its tasks and models, those whose image servers do not answer."""


class WorkerHeartbeat(Message, frozen=True):
    load: Annotated[float, Meta(ge=0, le=1_000)] = 0.0
    running: Count = 0
    waiting: Count = 0
    warm: Count = 0
    readings: Readings = ()
    models: Models | None = None
    """All that is on its disk, where that changed."""
    models_loaded: ModelNames = ()
    leaving: bool = False
    """It takes nothing new, and says goodbye when what runs there has ended."""
    servers: Servers | None = None
    """All of its image servers, where one of them fell silent or answers again."""
    withdrawn: Withdrawn | None = None
    """Where that changed."""


class JobStarted(JobMessage, frozen=True):
    at: float
    devices: Words = ()
    warm: bool = False


class JobOutput(JobMessage, frozen=True):
    """Output of the job, as text where it is UTF-8 and as base64 where it is not."""

    stream: Annotated[str, Meta(max_length=MOST_STREAM)]
    text: str = ""
    data: bytes = b""
    n: Number = 0
    """With this message. It is sent again until it is acknowledged, and counts once."""


class JobProgress(JobMessage, frozen=True):
    fraction: float | None = None
    message: str = ""
    metrics: dict[str, MetricValue] = {}
    step: Annotated[int, Meta(ge=-(2**53), le=2**53)] | None = None
    n: Number = 0


class JobCompleted(JobMessage, frozen=True):
    at: float
    seconds: float
    digest: str
    result: Blob | None = None
    output: Number = 0
    """Of the last thing it told."""


class JobFailed(JobMessage, frozen=True):
    at: float
    seconds: float
    digest: str
    failure: Failure
    output: Number = 0


class JobReturned(JobMessage, frozen=True):
    """Never started here; place it elsewhere."""

    reason: str


class WorkerGoodbye(Message, frozen=True):
    reason: str = ""


# --- controller -> worker ----------------------------------------------------------------------


class WorkerWelcome(Message, frozen=True):
    name: str
    heartbeat_s: float
    grace_s: float
    url: str = ""
    """Where attempts fetch packages and store results; empty for where the worker dialled."""
    artifacts: str = ""
    """`root` or `bucket` where artifacts go there, empty where they go to the controller."""
    acknowledges: bool = False
    """It says what output it has, and takes the same twice; older controllers do neither."""


class JobDispatch(Assignment, Message, frozen=True):
    @classmethod
    def of(cls, assignment: Assignment) -> JobDispatch:
        return cls(*astuple(assignment)[: len(Assignment.__struct_fields__)])


class JobCancel(JobMessage, frozen=True):
    grace_s: float = 5.0


class JobRecall(JobMessage, frozen=True):
    """Give an attempt back if it has not started."""


class JobExtend(JobMessage, frozen=True):
    """It may run so long now, from its start. Sent to workers that say they know of it."""

    duration_s: float


class ResultReceived(JobMessage, frozen=True):
    """The end of this attempt is journaled; the worker may forget it."""


class OutputReceived(Message, frozen=True):
    """Everything that these attempts told up to these numbers is written down, or unwanted; the
    worker may forget it. Sent to workers that number what they send."""

    upto: tuple[tuple[JobId, int, int], ...]


class Drain(Message, frozen=True):
    """Take nothing new, return what has not started, end the rest within `grace_s`."""

    grace_s: float


FromWorker = (
    WorkerRegister
    | WorkerHeartbeat
    | JobStarted
    | JobOutput
    | JobProgress
    | JobCompleted
    | JobFailed
    | JobReturned
    | WorkerGoodbye
)
FromController = (
    WorkerWelcome
    | JobDispatch
    | JobCancel
    | JobRecall
    | JobExtend
    | ResultReceived
    | OutputReceived
    | Drain
)


class Hello(Struct):
    """What can be read of a first message in whatever version: the version."""

    runner_protocol: Version = ""


def refusal(version: str) -> str:
    """Why a worker of this version cannot work here, and what to do; empty where it can."""
    if version in COMPATIBLE:
        return ""
    spoken = " or ".join(COMPATIBLE)
    newer = version.isdecimal() and int(version) > max(map(int, COMPATIBLE))
    remedy = (
        "Update the controller first." if newer else "Run the line of `corral invite` there again."
    )
    return f"The worker speaks protocol {version[:16]!r}, this controller {spoken}. {remedy}"


encode = msgspec.json.Encoder().encode
decode_hello = msgspec.json.Decoder(list[Hello]).decode
_from_worker: msgspec.json.Decoder[list[FromWorker]] = msgspec.json.Decoder(
    Annotated[list[FromWorker], Meta(max_length=MOST_MESSAGES)]
)
decode_from_worker = _from_worker.decode
decode_from_controller = msgspec.json.Decoder(list[FromController]).decode
