"""Facts: one frozen class for each thing that happened, in the past tense.

The first group is journaled and moves a job through its life (see lifecycle). The second is
journaled beside it and moves nothing. The third is what engines report; `scheduler.settle`
concludes from those what they mean for the job.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from corral.core.frames import OutputFrame, ProgressFrame
from corral.core.job import Blob, Failure, JobId, Needs, QueueClass, Workload
from corral.core.worker import Capabilities


class Fact(Struct, frozen=True, gc=False, tag=True, tag_field="fact", omit_defaults=True):
    """Something that happened to one job at one moment (seconds since the epoch)."""

    job: JobId
    at: float


# --- the life of a job -------------------------------------------------------------------------


class SubmissionFact(Fact, frozen=True):
    """What stays in memory of a submitted document, whatever was answered."""

    needs: Needs
    digest: str
    workload: Workload = Workload.PYTHON
    queue_class: QueueClass = QueueClass.BATCH
    priority: int = 0
    name: str = ""
    user: str = ""
    batch: str = ""
    key: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    duration_s: float = 3600.0
    retries: int = 0
    retry_of: JobId = ""
    correlation_id: str = ""
    """Of the call that submitted it."""
    secrets: tuple[str, ...] = ()
    """Names alone: a value is looked up when an attempt is sent."""
    notify: str = ""
    checkpoint: str = ""


class JobSubmitted(SubmissionFact, frozen=True):
    """Accepted, durably."""


class JobRejected(SubmissionFact, frozen=True):
    """Never accepted, but it has an id and stays in the history with its reason."""

    code: str = ""
    message: str = ""


class JobMovedToFront(Fact, frozen=True):
    """Somebody wants it next: it waits before all others of its class and priority."""


class JobExtended(Fact, frozen=True):
    """It may run longer than it was submitted with, in this attempt and in all that follow."""

    by_s: float


class AttemptPlaced(Fact, frozen=True):
    attempt: int
    worker: str
    why: str = ""
    """Why this worker: kept as counts and one sentence, never as a list of all others."""
    ahead: bool = False
    engine: str = ""


class AttemptStarted(Fact, frozen=True):
    attempt: int
    devices: tuple[str, ...] = ()
    warm: bool = False


class JobRequeued(Fact, frozen=True):
    attempt: int
    code: str
    message: str
    not_before: float = 0.0
    fault: str = "worker"
    """`job` counts against `retries`, `worker` against the policy's losses, `none` is free."""
    above_vram_gb: float = 0.0
    avoid: str = ""
    output: int = 0
    """The number of the last thing that the attempt told, where its worker said so."""


class JobStopping(Fact, frozen=True):
    attempt: int
    reason: str = "cancelled"


class JobSucceeded(Fact, frozen=True):
    attempt: int
    seconds: float
    result: Blob | None = None
    output: int = 0


class JobFailed(Fact, frozen=True):
    attempt: int
    failure: Failure
    seconds: float = 0.0
    output: int = 0


class JobCancelled(Fact, frozen=True):
    attempt: int = 0
    seconds: float = 0.0
    output: int = 0


# --- notes beside it ---------------------------------------------------------------------------


class ArtifactStored(Fact, frozen=True):
    attempt: int
    name: str
    size: int
    file_sha256: str
    uri: str = ""
    """Where its bytes are, if not with the controller."""
    after: int = 0
    """The job's last record before this one that tells more than that something was stored."""


class CheckpointStored(Fact, frozen=True):
    attempt: int
    size: int
    sha256: str
    after: int = 0
    """As of an artifact."""


class ResultOrphaned(Fact, frozen=True):
    """A result of an older attempt: kept for inspection, never applied."""

    attempt: int
    outcome: str
    result: Blob | None = None
    failure: Failure | None = None


Life = (
    JobSubmitted
    | JobRejected
    | JobMovedToFront
    | JobExtended
    | AttemptPlaced
    | AttemptStarted
    | JobRequeued
    | JobStopping
    | JobSucceeded
    | JobFailed
    | JobCancelled
)
Note = ArtifactStored | CheckpointStored | ResultOrphaned
Journaled = Life | Note

encode_fact = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[Journaled] = msgspec.json.Decoder(Journaled)
decode_fact = _decoder.decode


# --- what engines report -----------------------------------------------------------------------


class WorkerJoined(Struct, frozen=True, gc=False):
    """A worker is there, and these are all the attempts it has; what it lacks is gone."""

    worker: str
    name: str
    capabilities: Capabilities
    attempts: tuple[tuple[JobId, int], ...] = ()
    leftovers: int = 0
    """Job processes of its former life that it found and ended."""
    remembers: bool = False
    """It has forgotten nothing since it was last known: what it lacks never reached it."""


class WorkerLost(Struct, frozen=True, gc=False):
    """A worker is gone for good, or stayed away longer than its grace period."""

    worker: str
    reason: str
    expected: bool = False
    """It said goodbye: nobody needs to look after it."""


class AttemptReport(Struct, frozen=True, gc=False):
    """Something about one attempt. `worker` is who says so: nobody speaks for another's."""

    job: JobId
    attempt: int
    worker: str


class AttemptBegan(AttemptReport, frozen=True):
    at: float
    devices: tuple[str, ...] = ()
    warm: bool = False


class AttemptOutput(AttemptReport, frozen=True):
    frame: OutputFrame | ProgressFrame


class AttemptExited(AttemptReport, frozen=True):
    at: float
    seconds: float
    digest: str = ""
    result: Blob | None = None
    failure: Failure | None = None
    output: int = 0
    """The number of the last thing it told; what the spool has not of that is missing."""


class AttemptReturned(AttemptReport, frozen=True):
    """The attempt never ran and can run elsewhere (recalled, or its worker is leaving)."""

    reason: str
    unasked: bool = False
    """Nobody wanted it back: it counts against the worker, or it could go to and fro for ever."""


EngineReport = (
    WorkerJoined | WorkerLost | AttemptBegan | AttemptOutput | AttemptExited | AttemptReturned
)
