"""What a job is: the closed document a client submits, what it needs, and how its needs group."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Annotated, ClassVar, assert_never, get_args

import msgspec
from msgspec import Meta, Raw, Struct

from corral.core.errors import InvalidJob
from corral.core.images.pipeline import Record
from corral.core.text import gpu_words

JobId = str

INLINE_LIMIT = 8 * 1024
"""Bytes up to this size ride inside documents and messages; larger ones travel over HTTP."""

DEFAULT_DURATION_S = 3600.0
MAX_DURATION_S = 7 * 24 * 3600.0


class QueueClass(StrEnum):
    INTERACTIVE = "interactive"
    BATCH = "batch"


class State(StrEnum):
    QUEUED = "queued"
    PLACED = "placed"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"

    ended: bool
    held: bool
    """A worker has, or is about to have, an attempt of this job."""


ENDED = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.REJECTED})
HELD = frozenset({State.PLACED, State.RUNNING, State.STOPPING})
for _state in State:  # plain attributes: every fact of every job asks for them
    _state.ended, _state.held = _state in ENDED, _state in HELD


class Needs(Struct, frozen=True, gc=False, omit_defaults=True):
    """What a worker must have. Hashable: jobs with equal needs are scheduled as one group."""

    gpus: Annotated[int, Meta(ge=0, le=64)] = 0
    gpu_tenths: Annotated[int, Meta(ge=0, le=10)] = 0
    """A share of one GPU in tenths, so that no float is ever compared."""
    vram_gb: Annotated[float, Meta(ge=0, le=10_000)] = 0.0
    gpu: str = ""
    """What each of its GPUs is called, such as RTX 4090; empty: anything."""
    cpus: Annotated[float, Meta(ge=0.1, le=1024)] = 1.0
    memory_gb: Annotated[float, Meta(ge=0, le=100_000)] = 0.0
    labels: tuple[str, ...] = ()
    worker: str = "auto"
    models: tuple[str, ...] = ()
    """Names of models that it works with; a worker loads those that it has not loaded yet."""
    task: str = ""
    """What of its workload it asks for, one of the worker's `task_types`; empty: nothing more."""
    read: tuple[str, ...] = ()
    """Paths of the worker that it reads, beyond those that every job reads anywhere."""
    owned: bool = False
    """Whether it was the home's own token that asked for them."""

    @property
    def wants_gpu(self) -> bool:
        return bool(self.gpus or self.gpu_tenths)


def gpu_needs(
    *, gpus: int | None, gpu_memory: float | None, vram_gb: float | None, gpu: str | None = None
) -> tuple[int, int]:
    """`gpus` and `gpu_memory` as whole GPUs and tenths of one, or an InvalidJob that says why not.

    >>> gpu_needs(gpus=None, gpu_memory=0.30000001192092896, vram_gb=None)  # a float32
    (0, 3)
    """
    if gpu and not gpu_words(gpu):
        raise InvalidJob(f"gpu is a GPU's name such as 'RTX 4090'; got {gpu[:40]!r}.")
    if gpus and gpu_memory:
        raise InvalidJob("Give gpus (whole GPUs) or gpu_memory (a share of one GPU), not both.")
    if gpus:
        return gpus, 0
    if gpu_memory:
        tenths = round(gpu_memory * 10)
        if abs(gpu_memory * 10 - tenths) > 1e-4 or not 1 <= tenths <= 10:
            raise InvalidJob(
                f"gpu_memory is a share of one GPU in tenths, 0.1 to 1.0; got {gpu_memory:g}. "
                "For whole GPUs use gpus=1, 2, …"
            )
        return 0, tenths
    return (1, 0) if vram_gb or gpu else (0, 0)


Size = Annotated[int, Meta(ge=0, le=2**53)]
"""Of bytes. Whoever sends more than a number of JavaScript can hold means harm."""


class Blob(Struct, frozen=True, gc=False, omit_defaults=True):
    """Bytes known by their digest; the bytes themselves ride along when they are small."""

    sha256: str
    size: Size
    data: bytes | None = None

    @classmethod
    def of(cls, data: bytes, *, inline: bool = True) -> Blob:
        kept = data if inline and len(data) <= INLINE_LIMIT else None
        return cls(sha256=hashlib.sha256(data).hexdigest(), size=len(data), data=kept)


class Input(Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """An asset under the name that the job finds it by in its work directory."""

    name: str
    sha256: str
    size: int
    path: str = ""
    """Where it lies inside the shared root; empty for one that is fetched."""


class Workload(StrEnum):
    """What a worker must accept to get a job, and all that the scheduler knows of its work."""

    PYTHON = "python"
    PIPELINE = "pipeline"

    @property
    def brings_code(self) -> bool:
        """Whether it runs what somebody submitted. All else is Corral's own code: it needs no
        environment of its own and shares processes with whoever submitted the like."""
        match self:
            case Workload.PYTHON:
                return True
            case Workload.PIPELINE:
                return False
            case _:
                assert_never(self)


class FunctionCall(
    Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True, tag="function"
):
    """A cloudpickled callable and its cloudpickled `(args, kwargs)`; opaque to the controller."""

    workload: ClassVar[Workload] = Workload.PYTHON
    function: Blob
    arguments: Blob
    code: Blob | None = None
    """A zip of the caller's own modules and packages, which both of them name. It never rides
    along: a worker keeps it by its digest."""


class ScriptCall(Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag="script"):
    """A zip of files and what to run in it: a `.py` file, or `package.module:function`."""

    workload: ClassVar[Workload] = Workload.PYTHON
    package: Blob
    entry: str = "main.py"
    argv: tuple[str, ...] = ()


class PipelineCall(Struct, frozen=True, gc=False, forbid_unknown_fields=True, tag="pipeline"):
    workload: ClassVar[Workload] = Workload.PIPELINE
    record: Record


Work = FunctionCall | ScriptCall | PipelineCall
KINDS: dict[str, type[Work]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Work)}
"""Kinds of work by the `type` that a document names."""


class Job(Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """The job document: everything that decides what runs. It never changes after submission."""

    work: Work
    python: str = ""
    """The client's Python as `3.11`; a function's bytecode needs the same minor version."""
    requirements: tuple[str, ...] = ()
    env: dict[str, str] = {}
    needs: Needs = Needs()
    duration_s: Annotated[float, Meta(ge=1, le=MAX_DURATION_S)] = 3600.0
    queue_class: QueueClass = QueueClass.BATCH
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    retries: Annotated[int, Meta(ge=0, le=100)] = 0
    name: str = ""
    labels: dict[str, str] = {}
    user: str = ""
    on_behalf: bool = False
    """Whether an admin named that user, instead of the user's own token submitting it."""
    key: str = ""
    """The idempotency key: a second submission with the same key is the first one's job."""
    batch: str = ""
    fresh: bool = False
    wait: bool | None = None
    retry_of: JobId = ""
    secrets: tuple[str, ...] = ()
    """Names of secrets whose values its process finds in its environment."""
    notify: str = ""
    """A URL that is told when the job fails, and when its batch is done."""
    inputs: tuple[Input, ...] = ()
    checkpoint: str = ""
    """What it goes on from: the sha256 of the last checkpoint of the job that it is a retry of."""

    @property
    def workload(self) -> Workload:
        return self.work.workload

    def blobs(self) -> tuple[Blob, ...]:
        match self.work:
            case FunctionCall(function=function, arguments=arguments, code=code):
                return (function, arguments, code) if code else (function, arguments)
            case ScriptCall(package=package):
                return (package,)
            case PipelineCall():
                return ()
            case _:
                assert_never(self.work)


_encoder = msgspec.json.Encoder()
decode_document = msgspec.json.Decoder(Job).decode


def encode_document(job: Job, buffer: bytearray | None = None) -> bytes:
    """Whoever encodes many lends a buffer: each document then gets just the memory it needs."""
    if buffer is None:
        return _encoder.encode(job)
    _encoder.encode_into(job, buffer)
    return bytes(buffer)


ALONE = 2047
"""Up to so many bytes hashlib keeps the GIL."""


def document_digest(document: bytes, *, alone: bool = False) -> str:
    """What the worker echoes with its result: proof that it ran this document and no other.
    `alone` keeps the GIL: to get it back takes longer than to hash one document."""
    if not alone:
        return hashlib.sha256(document).hexdigest()
    digest = hashlib.sha256(document[:ALONE])
    for start in range(ALONE, len(document), ALONE):
        digest.update(document[start : start + ALONE])
    return digest.hexdigest()


class Assignment(Struct, frozen=True, gc=False, omit_defaults=True):
    """One try of a job, for whoever runs it: engines are given this, and the wire carries it."""

    job: JobId
    attempt: int
    """Its number: the fence against late and doubled messages."""
    document: Raw
    """As it was submitted, word for word."""
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
    secrets: dict[str, str] = {}
    """Values of the secrets that the job names: for its process alone, never for a log."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(job={self.job!r}, attempt={self.attempt!r}, …)"


class Shape(Struct, frozen=True, gc=False):
    """Everything the scheduler asks of a waiting job. Equal shapes wait in one line."""

    needs: Needs
    workload: Workload = Workload.PYTHON
    queue_class: QueueClass = QueueClass.BATCH
    priority: int = 0
    above_vram_gb: float = 0.0
    """After running out of memory: only GPUs with more VRAM than this."""
    avoid: tuple[str, ...] = ()
    """Workers that this job must not meet again."""


class Failure(Struct, frozen=True, gc=False, omit_defaults=True):
    """Why an attempt ended without a result. `code` decides what happens next (see settle)."""

    code: str
    message: str
    type: str = ""
    traceback: str = ""
    exit_code: Annotated[int, Meta(ge=-(2**31), le=2**32)] | None = None
    pickled: bytes | None = None
    """The exception itself, cloudpickled by the job process; only a client unpickles it."""

    @property
    def reason(self) -> str:
        """As tracebacks end: the type of an exception, and its message."""
        return ": ".join(word for word in (self.type, self.message) if word)


class Given(Struct, frozen=True, gc=False):
    """What a submission said beyond the shape. Jobs that came together mostly share one."""

    name: str = ""
    user: str = ""
    batch: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    duration_s: float = 3600.0
    retries: int = 0
    retry_of: JobId = ""
    correlation_id: str = ""
    secrets: tuple[str, ...] = ()
    notify: str = ""


class Course(Struct, frozen=True, gc=False):
    """What became of a job since it was submitted. Nearly all that wait share it: nothing did."""

    attempt: int = 0
    worker: str = ""
    engine: str = ""
    devices: tuple[str, ...] = ()
    failures: int = 0
    """Attempts that ended by the job's own fault; bounded by `retries`."""
    losses: int = 0
    """Attempts that ended by a worker's fault; bounded by the policy."""
    not_before: float = 0.0
    started_at: float = 0.0
    checkpoint: str = ""
    front: int = 0
    """The record that moved it to the front, 0 where it waits in the order of submission."""
    extended_s: float = 0.0
    """By how much it may run longer than it was submitted with."""
    story_seq: int = 0
    """Its last record that tells more than that a file of it was stored, 0 where none did since."""


class Head(Struct, frozen=True, gc=False):
    """In memory for every living job. Very many may wait: what they have in common is shared."""

    id: JobId
    shape: Shape
    state: State
    submitted_at: float
    submitted_seq: int
    last_seq: int
    given: Given = Given()
    key: str = ""
    course: Course = Course()

    @property
    def attempt(self) -> int:
        return self.course.attempt

    @property
    def worker(self) -> str:
        return self.course.worker

    @property
    def engine(self) -> str:
        return self.course.engine

    @property
    def story_seq(self) -> int:
        return self.course.story_seq or self.last_seq

    @property
    def name(self) -> str:
        return self.given.name

    @property
    def batch(self) -> str:
        return self.given.batch

    @property
    def duration_s(self) -> float:
        """After which an attempt is ended."""
        return self.given.duration_s + self.course.extended_s

    @property
    def place(self) -> int:
        """Its place among waiting jobs of its class and priority, lower first: it keeps it through
        retries, and whoever was moved to the front last is first."""
        return -self.course.front or self.submitted_seq
