"""One job on its way: its message, the bytes that go before it, and what it is called."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from corral.contract import corral_pb2 as pb
from corral.core.errors import InvalidJob
from corral.core.job import QueueClass
from corral.sdk.submit import own_code, packages
from corral.sdk.submit.submission import (
    PYTHON,
    Options,
    arguments,
    build,
    correlation_id,
    rides_along,
)

HOLD_S = 0.05
"""How long the answer to `run` waits for a short job; its output then comes with it."""


class OutgoingJob:
    """A submission on its way, and bytes too large to ride along, which have to be stored first."""

    def __init__(
        self,
        job: pb.JobSubmission,
        parts: list[tuple[pb.BlobRef, bytes]],
        correlation_id: str,
        code: own_code.OwnCode | None = None,
    ) -> None:
        self._job = job
        self.code = code
        """What has to be stored before, unless the controller has it."""
        if code is not None:
            job.function.code.sha256 = code.sha256
        self._parts = parts
        self.correlation_id = correlation_id
        job.idempotency_key = job.idempotency_key or os.urandom(16).hex()
        for blob, data in parts:
            blob.size = len(data)
            if rides_along(data):
                blob.data = data

    @property
    def name(self) -> str:
        return self._job.name

    def large(self) -> list[tuple[pb.BlobRef, bytes]]:
        return [(blob, data) for blob, data in self._parts if not blob.data and not blob.sha256]

    def request(self, hold_s: float) -> pb.SubmitJobsRequest:
        """A call's arguments go apart from its job, which the controller has likely met."""
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
    job = build(options, queue_class=queue_class, name=name_of(fn))
    if job.python != PYTHON:
        raise InvalidJob(
            f"A function's bytecode runs on the Python that made it, {PYTHON} here, and not on "
            f"{job.python}. Call it from Python {job.python}, or send a script."
        )
    given = arguments(args, kwargs)
    along = own_code.along_of(options)
    parts = [
        (job.function.function, packages.pickle_function(fn, along)),
        (job.function.arguments, packages.pickle_arguments(*given, along)),
    ]
    code = along.packed() if along is not None else None
    return OutgoingJob(job, parts, correlation_id(options), code)


def script_job(
    path: str | os.PathLike[str],
    argv: Iterable[str],
    entry: str | None,
    options: Options,
    queue_class: QueueClass,
) -> OutgoingJob:
    if options.get("code") is not None:
        raise InvalidJob("code goes with functions. A script brings what it needs as its folder.")
    target = Path(path)
    job = build(options, queue_class=queue_class, name=target.resolve().name)
    package, job.script.entry = packages.pack(target, entry)
    packages.check_inputs(package, [one.name for one in job.inputs])
    job.script.argv.extend(str(word) for word in argv)
    return OutgoingJob(job, [(job.script.package, package)], correlation_id(options))


def name_of(fn: Any) -> str:
    return str(getattr(fn, "__qualname__", None) or type(fn).__name__).rpartition("<locals>.")[2]
