"""Whether a submission is taken, and what it then means: a fact for each job, and answers."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import asdict

from corral import correlation
from corral.core.errors import CorralError, ExceedsAllWorkers, NoGpuWorkers
from corral.core.events import JobRejected, JobSubmitted, Journaled, SubmissionFact
from corral.core.job import Job, JobId, QueueClass, document_digest
from corral.core.lifecycle import shape_of
from corral.core.worker import Worker
from corral.scheduler.fit import Room, refuse_ever, refuse_name, refuse_now


def admit(job: Job, workers: Sequence[Worker]) -> tuple[str, CorralError | None]:
    """Whether a submission waits (perhaps with a warning) or is refused, and why."""
    may_wait = job.wait if job.wait is not None else job.queue_class is QueueClass.BATCH
    if not workers:
        if may_wait:
            return "No worker is known yet; the job waits for one.", None
        return "", NoGpuWorkers(
            "No GPU workers available. Start one with `corral up` or `corral worker join`, or "
            "submit with wait=True (`--wait`) to queue the job until one comes."
        )
    shape = shape_of(job)
    reasons = {worker.name: refuse_ever(shape, worker) for worker in workers}
    able = [worker for worker in workers if reasons[worker.name] is None]
    if able and (job.wait is not False or any(worker.takes_work for worker in able)):
        return "", None
    if able:
        told = "; ".join(
            f"{one.name}: {refuse_now(shape, Room(one)) or 'busy'}" for one in able[:5]
        )
        return "", NoGpuWorkers(
            f"No worker that could run this takes work now ({told}). Submit without wait=False "
            "(`--no-wait`) to queue it until one is back."
        )
    told = refuse_name(job.needs, workers) or "; ".join(
        f"{name}: {reason}" for name, reason in list(reasons.items())[:5]
    )
    if may_wait:
        return f"No known worker can run this ({told}); the job waits for one that can.", None
    return "", ExceedsAllWorkers(
        f"No known worker can run this ({told}). Ask for less, or submit with wait=True (`--wait`) "
        "to queue it until such a worker joins.",
        details={"workers": reasons},
    )


_OWN = ("job", "at", "digest", "labels", "correlation_id")
_AS_GIVEN = tuple(name for name in SubmissionFact.__struct_fields__ if name not in _OWN)
_as_given = attrgetter(*_AS_GIVEN)


class Accepted(Struct, frozen=True):
    job: JobId
    warning: str = ""


class Draft:
    """A submission on its way to the store: of one job, or of several."""

    def __init__(self, count: int = 1) -> None:
        self._is_one = count == 1
        self.correlation_id = correlation.current()
        self.facts: list[Journaled] = []
        self.documents: dict[JobId, bytes] = {}
        self.answers: list[Accepted] = []
        self.refusal: CorralError | None = None

    def add(
        self,
        job: Job,
        job_id: JobId,
        document: bytes,
        now: float,
        warning: str,
        error: CorralError | None,
    ) -> None:
        self.documents[job_id] = document
        self.answers.append(Accepted(job_id, warning))
        submitted = JobSubmitted(
            job=job_id,
            at=now,
            digest=document_digest(document, alone=self._is_one),
            labels=tuple(sorted(job.labels.items())) if job.labels else (),
            correlation_id=self.correlation_id,
            **dict(zip(_AS_GIVEN, _as_given(job), strict=True)),
        )
        if error is None:
            self.facts.append(submitted)
            return
        error.job_id = job_id
        self.refusal = self.refusal or error
        # Its key stays free: the same submission may be tried again later.
        told = asdict(submitted) | {"key": "", "code": error.code, "message": error.message}
        self.facts.append(JobRejected(**told))
