"""Every message between controller and agent. One WebSocket frame is a JSON list of messages.

Every message about an attempt carries its number: that is the fence against late and doubled
messages. Unknown fields are refused; a change here is a new version.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from corral.core.job import Blob, Failure, JobId, Needs, QueueClass
from corral.core.model import Model
from corral.core.worker import Capabilities, Reading

VERSION = "1"
COMPATIBLE: frozenset[str] = frozenset({"1"})
"""Versions of `runner_protocol` that this controller works with."""

CLOSE_MALFORMED = 4400
CLOSE_UNAUTHORIZED = 4401
CLOSE_REVOKED = 4403
CLOSE_INCOMPATIBLE = 4426
CLOSE_REPLACED = 4409
CLOSE_STOPPING = 4503


class Message(
    Struct,
    frozen=True,
    gc=False,
    tag=True,
    tag_field="type",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Root of all messages; `type` is the class name."""


# --- worker -> controller ----------------------------------------------------------------------


class WorkerRegister(Message, frozen=True):
    worker_id: str
    software_version: str
    runner_protocol: str
    capabilities: Capabilities
    name: str = ""
    gpu_name: str = ""
    vram_gb: float = 0.0
    max_batch: int = 1
    supported_models: tuple[str, ...] = ()
    attempts: tuple[tuple[JobId, int], ...] = ()
    """Attempts this worker still has, running or waiting, and results not yet received."""
    models: tuple[Model, ...] = ()
    """What is on its disk, so far as it has looked; a heartbeat tells what changes."""
    models_loaded: tuple[str, ...] = ()
    readings: tuple[Reading, ...] = ()


class WorkerHeartbeat(Message, frozen=True):
    load: float = 0.0
    running: int = 0
    waiting: int = 0
    warm: int = 0
    readings: tuple[Reading, ...] = ()
    models: tuple[Model, ...] | None = None
    """All that is on its disk, where that changed."""
    models_loaded: tuple[str, ...] = ()


class JobStarted(Message, frozen=True):
    job: JobId
    attempt: int
    at: float
    devices: tuple[str, ...] = ()
    warm: bool = False


class JobOutput(Message, frozen=True):
    """Output of the job, as text where it is UTF-8 and as base64 where it is not."""

    job: JobId
    attempt: int
    stream: str
    text: str = ""
    data: bytes = b""


class JobProgress(Message, frozen=True):
    """Progress, or metrics, as the job told them."""

    job: JobId
    attempt: int
    fraction: float | None = None
    message: str = ""
    metrics: dict[str, float] = {}
    step: int | None = None


class JobCompleted(Message, frozen=True):
    job: JobId
    attempt: int
    at: float
    seconds: float
    digest: str
    result: Blob | None = None


class JobFailed(Message, frozen=True):
    job: JobId
    attempt: int
    at: float
    seconds: float
    digest: str
    failure: Failure


class JobReturned(Message, frozen=True):
    """Never started here; place it elsewhere."""

    job: JobId
    attempt: int
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


class JobDispatch(Message, frozen=True):
    job: JobId
    attempt: int
    document: Raw
    digest: str
    token: str
    """Good for this attempt's transfers alone."""
    needs: Needs
    above_vram_gb: float = 0.0
    duration_s: float = 3600.0
    queue_class: QueueClass = QueueClass.BATCH
    priority: int = 0
    checkpoint: str = ""
    correlation_id: str = ""
    """For the log and the job's own environment."""
    output_limit: int = 2_000_000_000
    secrets: dict[str, str] = {}
    """Values of the secrets that the job names: for its process alone, never for a log."""

    def __repr__(self) -> str:
        return f"JobDispatch(job={self.job!r}, attempt={self.attempt!r}, …)"


class JobCancel(Message, frozen=True):
    job: JobId
    attempt: int
    grace_s: float = 5.0


class JobRecall(Message, frozen=True):
    """Give an attempt back if it has not started."""

    job: JobId
    attempt: int


class ResultReceived(Message, frozen=True):
    """The end of this attempt is journaled; the worker may forget it."""

    job: JobId
    attempt: int


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
FromController = WorkerWelcome | JobDispatch | JobCancel | JobRecall | ResultReceived | Drain

encode = msgspec.json.Encoder().encode
decode_from_worker = msgspec.json.Decoder(list[FromWorker]).decode
decode_from_controller = msgspec.json.Decoder(list[FromController]).decode
