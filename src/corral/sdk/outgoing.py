"""A call of the user as a job on its way to the controller."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from corral.contract import corral_pb2 as pb
from corral.core.job import QueueClass
from corral.sdk.submit import packages, submission
from corral.sdk.submit.submission import Options

HOLD_S = 0.05
"""How long the answer to `run` waits for a short job; its output then comes with it."""


class OutgoingJob:
    """One job on its way to the controller: the submission, and bytes that are too large to ride
    along and have to be stored first."""

    def __init__(
        self, job: pb.JobSubmission, parts: list[tuple[pb.BlobRef, bytes]], correlation_id: str
    ) -> None:
        self._job = job
        self._parts = parts
        self.correlation_id = correlation_id
        job.idempotency_key = job.idempotency_key or os.urandom(16).hex()
        for blob, data in parts:
            blob.size = len(data)
            if submission.rides_along(data):
                blob.data = data

    def large(self) -> list[tuple[pb.BlobRef, bytes]]:
        return [(blob, data) for blob, data in self._parts if not blob.data and not blob.sha256]

    def request(self, hold_s: float) -> pb.SubmitJobsRequest:
        """A call says what it is like apart from what is its own: the controller has most likely
        met the like of it before."""
        job = self._job
        if not job.HasField("function"):
            return pb.SubmitJobsRequest(jobs=[job], hold_s=hold_s)
        request = pb.SubmitJobsRequest(like=job, hold_s=hold_s)
        request.like.ClearField("idempotency_key")
        request.like.function.ClearField("arguments")
        call = request.calls.add(idempotency_key=job.idempotency_key)
        call.arguments.CopyFrom(job.function.arguments)
        return request


def function_job(
    fn: Callable[..., Any],
    args: Iterable[Any],
    kwargs: dict[str, Any] | None,
    options: Options,
    queue_class: QueueClass,
) -> OutgoingJob:
    job = submission.build(options, queue_class=queue_class, name=name_of(fn))
    given = submission.arguments(args, kwargs)
    parts = [
        (job.function.function, packages.pickle_function(fn)),
        (job.function.arguments, packages.pickle_arguments(*given)),
    ]
    return OutgoingJob(job, parts, submission.correlation_id(options))


def script_job(
    path: str | os.PathLike[str],
    argv: Iterable[str],
    entry: str | None,
    options: Options,
    queue_class: QueueClass,
) -> OutgoingJob:
    target = Path(path)
    job = submission.build(options, queue_class=queue_class, name=target.resolve().name)
    package, job.script.entry = packages.pack(target, entry)
    packages.check_inputs(package, [one.name for one in job.inputs])
    job.script.argv.extend(str(word) for word in argv)
    return OutgoingJob(job, [(job.script.package, package)], submission.correlation_id(options))


def name_of(fn: Any) -> str:
    return str(getattr(fn, "__qualname__", None) or type(fn).__name__).rpartition("<locals>.")[2]
