"""What the SDK shows of jobs, workers and the controller: plain values, no protobuf."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from corral.core.job import ENDED, Blob, Failure

MetricValue = Annotated[
    float,
    Meta(
        description='In JSON "NaN", "Infinity" or "-Infinity" where it is not finite.',
        extra_json_schema={"type": ["number", "string"]},
    ),
]


class Shown(Struct, frozen=True):
    """Values that a person may meet in a prompt: what is empty is left out, what is long cut."""

    def __repr__(self) -> str:
        found = ((name, getattr(self, name)) for name in self.__struct_fields__)
        told = ", ".join(f"{name}={_brief(value)}" for name, value in found if value or value == 0)
        return f"{type(self).__name__}({told})"


def _brief(value: Any) -> str:
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, Blob):
        return f"<{value.size} bytes>"
    if isinstance(value, Failure):
        return repr(f"{value.code}: {value.type or value.message}"[:80])
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


class Event(Shown, frozen=True, kw_only=True, tag=True, tag_field="event"):
    """Something that happened to a job. `cursor` lets `events(after=…)` go on behind it."""

    job_id: str
    cursor: str = ""
    at: float = 0.0
    attempt: int = 0


class StateChanged(Event, frozen=True, kw_only=True, tag="state"):
    state: str
    worker: str = ""
    code: str = ""
    message: str = ""
    devices: tuple[str, ...] = ()


class Output(Event, frozen=True, kw_only=True, tag="output"):
    stream: str
    data: bytes
    skipped: int = 0


class Progress(Event, frozen=True, kw_only=True, tag="progress"):
    fraction: float | None = None
    message: str = ""
    metrics: dict[str, MetricValue] = {}
    step: int | None = None


class ArtifactStored(Event, frozen=True, kw_only=True, tag="artifact"):
    name: str
    size: int
    file_sha256: str
    uri: str = ""


class Ended(Event, frozen=True, kw_only=True, tag="ended"):
    state: str
    result: Blob | None = None
    failure: Failure | None = None
    seconds: float = 0.0


class Artifact(Shown, frozen=True):
    name: str
    size: int
    file_sha256: str
    uri: str = ""


class Progressed(Shown, frozen=True):
    """The last progress and metrics a job told."""

    fraction: float | None = None
    message: str = ""
    metrics: dict[str, MetricValue] = {}
    step: int | None = None


class CheckpointView(Shown, frozen=True):
    """The last checkpoint that a job stored: a retry goes on from there."""

    size: int
    at: float


class JobView(Shown, frozen=True):
    job_id: str
    name: str
    state: str
    queue_class: str
    priority: int
    attempt: int
    worker: str
    user: str
    batch: str
    labels: dict[str, str]
    submitted_at: float
    started_at: float
    ended_at: float
    seconds: float
    failure: Failure | None
    result: Blob | None
    artifacts: tuple[Artifact, ...]
    progress: Progressed | None
    retry_of: str
    devices: tuple[str, ...]
    warnings: tuple[str, ...]
    workload: str
    correlation_id: str
    models: tuple[str, ...] = ()
    record: dict[str, Any] | None = None
    """What an image job renders; only of a job that was asked for by itself."""
    more_artifacts: bool = False
    """Whether there may be more than `artifacts` shows; `artifacts()` of its handle has all."""
    worker_silent_s: float = 0.0
    """How long nothing was heard of its worker, which is in its grace; only of a job that was asked
    for by itself."""
    duration: float = 0.0
    """Seconds after which an attempt is ended."""
    last_checkpoint: CheckpointView | None = None

    def __repr__(self) -> str:
        where = f" on {self.worker}" if self.worker else ""
        why = f", {_brief(self.failure)}" if self.failure else ""
        return f"<JobView {self.job_id} {self.name!r} {self.state}{where}{why}>"

    @property
    def ended(self) -> bool:
        return self.state in ENDED


class WhyWorker(Shown, frozen=True):
    worker: str
    reason: str


class Explanation(Shown, frozen=True):
    job_id: str
    state: str
    summary: str
    workers: tuple[WhyWorker, ...]
    history: tuple[str, ...]


class GpuView(Shown, frozen=True):
    uuid: str
    name: str
    vram_gb: float
    free: float
    """The share that no attempt holds, 0 to 1."""
    free_gb: float | None = None
    ours_gb: float | None = None
    """VRAM that jobs of Corral hold, as the driver counts it."""
    others_gb: float | None = None
    temperature_c: float | None = None
    utilisation: float | None = None
    tflops: float = 0.0
    lost: bool = False
    """Its driver does not answer for it any more."""


class ModelView(Shown, frozen=True):
    name: str
    size: int
    sha256: str


class ImageServerView(Shown, frozen=True):
    kind: str
    url: str
    trouble: str
    """Why it does not answer; empty: it does."""


class WorkerView(Shown, frozen=True):
    id: str
    name: str
    engine: str
    connected: bool
    cpus: float
    memory_gb: float
    gpus: tuple[GpuView, ...]
    labels: tuple[str, ...]
    workloads: tuple[str, ...]
    platform: str
    python: str
    enforced: dict[str, str]
    running: int
    waiting: int
    seen_at: float
    draining: bool
    version: str
    circuit: str = ""
    """Why it gets nothing after failures of its own; empty while its circuit is closed."""
    load: float = 0.0
    models: tuple[ModelView, ...] = ()
    models_loaded: tuple[str, ...] = ()
    model_paths: tuple[str, ...] = ()
    output_path: str = ""
    task_types: tuple[str, ...] = ()
    left: bool = False
    """It said goodbye and has not been back."""
    servers: tuple[ImageServerView, ...] = ()


class Health(Shown, frozen=True):
    status: str
    version: str
    workers: int
    queued: int
    running: int
    started_at: float
    reason: str = ""
    """Why its status is `full`."""


class QueueView(Shown, frozen=True):
    """The queue as a whole."""

    paused: bool
    paused_at: float
    paused_by: str
    waiting: dict[str, int]
    """By class."""
    active: int
    """Jobs that a worker has or is about to have."""


class TokenView(Shown, frozen=True):
    """What is known of a client's token; the token itself is shown once, when it is made."""

    name: str
    role: str
    created_at: float
    expires_at: float


class SecretView(Shown, frozen=True):
    """A secret by its name. Its value is not for looking at."""

    name: str
    set_at: float


class InvitationView(Shown, frozen=True):
    """With what a machine joins, or a client logs in. Whoever has it can use it."""

    invitation: str
    shell: str = ""
    """For workers: the line that makes a bare Linux machine one."""
    powershell: str = ""
    """And a bare Windows machine."""
    expires_at: float = 0.0
    """For workers: until when machines may join with it; 0 where it has no end."""


class BatchWorker(Shown, frozen=True):
    """What one worker did, and does, of a batch."""

    worker: str
    succeeded: int
    failed: int
    running: int
    seconds: float
    """Of what has ended."""
    model_switches: int


class BatchView(Shown, frozen=True):
    """Jobs that were submitted together. `done` is the share of them that has ended, 0 to 1."""

    batch: str
    jobs: int
    states: dict[str, int]
    done: float
    submitted_at: float
    ended_at: float
    """0 while something of it lives."""
    seconds: float
    workers: tuple[BatchWorker, ...] = ()
    """Where one batch is asked for; lists leave this and what follows out."""
    model_switches: int = 0
    """How often a worker had to change models between its jobs."""
    left_s: float | None = None
    """About how long it still takes, if nothing else ran; None where nobody knows."""

    @property
    def ended(self) -> bool:
        return self.ended_at > 0


class ImageView(Shown, frozen=True):
    """An image that a job made, or the replay card beside it, among the job's artifacts."""

    job_id: str
    name: str
    size: int
    file_sha256: str
    worker: str


class PresetView(Shown, frozen=True):
    """The base of a plan, kept under a name."""

    name: str
    saved_at: float


class JoinRequestView(Shown, frozen=True):
    """A machine that found the controller by itself and waits to be confirmed."""

    name: str
    address: str
    code: str
    """Which the machine shows too."""
    age_s: float


class RatingView(Shown, frozen=True):
    """How good the images of a job are: 1 to 5."""

    job_id: str
    rating: int
    note: str
    by: str
    """The name of the token that it came with; empty for the home's own."""
    at: float


class LearningRunView(Shown, frozen=True):
    """One setting tried at several values. `result` is the LearningRunResult as far as it has come,
    its steps in their order; None in a list."""

    name: str
    batch: str
    jobs: int
    started_at: float
    warnings: tuple[str, ...] = ()
    result: dict[str, Any] | None = None
