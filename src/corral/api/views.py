"""Jobs, events and workers as clients see them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cache
from heapq import nsmallest
from typing import Any, TypeVar

import msgspec

from corral.api.parts import Parts
from corral.contract import corral_pb2 as pb
from corral.controller.auth.worker_admin import WorkerAdmin
from corral.controller.history.listing import Counted
from corral.controller.images.learning_runs import StartedRun
from corral.controller.images.plans import BuiltBatch
from corral.controller.images.presets import Preset
from corral.controller.jobs.batches import look
from corral.controller.output.pages import Seen
from corral.controller.store import Store
from corral.controller.why import explain, silent_worker
from corral.core.access import Role
from corral.core.errors import JobNotFound
from corral.core.events import (
    ArtifactStored,
    AttemptPlaced,
    AttemptStarted,
    CheckpointStored,
    JobCancelled,
    JobFailed,
    JobRejected,
    JobRequeued,
    JobStopping,
    JobSubmitted,
    JobSucceeded,
    Journaled,
)
from corral.core.frames import OutputFrame, ProgressFrame, decode_frame
from corral.core.images.pipeline import spelled_out
from corral.core.job import (
    Blob,
    Head,
    JobId,
    PipelineCall,
    State,
    Workload,
    decode_document,
)
from corral.core.worker import Worker
from corral.scheduler.fit import Room

M = TypeVar("M")

TURN = 8

PAGE_WORKERS, PAGE_BYTES = 50, 1 << 20
"""A page ends with the worker that fills it. One alone says less than a message holds: all that is
kept of it came in frames (`limits.frame_bytes`)."""

LOOKED_AT = 100
"""Newest records of a job that are searched for artifacts; who wants more asks page by page."""


def event_of(seen: Seen, names: Mapping[str, str]) -> pb.JobEvent | None:
    """What a watcher is sent for one thing it saw; None for what is not for clients."""
    event = pb.JobEvent(job_id=seen.job, cursor=str(seen.cursor), attempt=seen.attempt)
    if seen.skipped:
        event.output.skipped = seen.skipped
    elif seen.fact is None:
        frame = decode_frame(seen.frame)
        if frame is None:
            return None
        event.at = frame.at
        if isinstance(frame, OutputFrame):
            event.output.stream = frame.stream
            event.output.data = frame.data or frame.text.encode()
        else:
            event.progress.CopyFrom(_progress(frame))
    else:
        event.at = seen.fact.at
        if not _tell(event, seen.fact, names):
            return None
    return event


def _tell(event: pb.JobEvent, fact: Journaled, names: Mapping[str, str]) -> bool:
    match fact:
        case JobSubmitted():
            event.state.state = State.QUEUED
        case AttemptPlaced():
            event.state.state = State.PLACED
            event.state.worker = names.get(fact.worker, fact.worker)
            event.state.message = fact.why
        case AttemptStarted():
            event.state.state = State.RUNNING
            event.state.devices.extend(fact.devices)
        case JobRequeued():
            event.state.state = State.QUEUED
            event.state.code = fact.code
            event.state.message = fact.message
        case JobStopping():
            event.state.state = State.STOPPING
        case ArtifactStored():
            event.artifact.CopyFrom(filled(pb.ArtifactView, fact))
        case JobSucceeded() | JobFailed() | JobCancelled() | JobRejected():
            event.ended.CopyFrom(ended_of(fact))
        case _:
            return False
    return True


def ended_of(fact: JobSucceeded | JobFailed | JobCancelled | JobRejected) -> pb.Ended:
    match fact:
        case JobSucceeded():
            return pb.Ended(state=State.SUCCEEDED, seconds=fact.seconds, result=_blob(fact.result))
        case JobFailed():
            code = fact.failure.exit_code
            if code is not None and code >= 2**31:
                code -= 2**32  # Windows names crashes by large numbers: the same bits with a sign
            failure = filled(pb.Failure, fact.failure, exit_code=code)
            return pb.Ended(state=State.FAILED, seconds=fact.seconds, failure=failure)
        case JobCancelled():
            return pb.Ended(state=State.CANCELLED, seconds=fact.seconds)
        case JobRejected():
            failure = pb.Failure(code=fact.code, message=fact.message)
            return pb.Ended(state=State.REJECTED, failure=failure)


@cache
def _alike(message: Any, source: Any) -> tuple[str, ...]:
    """The names that fields of a message and of a struct have in common."""
    known = message.DESCRIPTOR.fields_by_name
    return tuple(name for name in source.__struct_fields__ if name in known)


def filled(message: Callable[..., M], *sources: msgspec.Struct, **other: Any) -> M:
    """A message with the sources' fields of the same names, but for those that are given."""
    for source in sources:
        for name in _alike(message, type(source)):
            if name not in other:
                other[name] = getattr(source, name)
    return message(**other)


def _progress(frame: ProgressFrame) -> pb.Progress:
    metrics = {name: float(value) for name, value in frame.metrics.items()}
    return filled(pb.Progress, frame, metrics=metrics)


def _blob(blob: Blob | None) -> pb.BlobRef | None:
    if blob is None:
        return None
    return pb.BlobRef(sha256=blob.sha256, size=blob.size, data=blob.data or b"")


def job_view(store: Store, head: Head, progress: ProgressFrame | None = None) -> pb.JobView:
    view = filled(
        pb.JobView,
        *(head, head.shape, head.given, head.course),
        job_id=head.id,
        worker=store.world.names.get(head.worker, head.worker),
        labels=dict(head.given.labels),
        models=head.shape.needs.models,
        duration=head.duration_s,
    )
    if progress is not None:
        view.progress.CopyFrom(_progress(progress))
    if not head.attempt and not head.state.ended:
        return view  # nothing more to tell, and nothing to read
    artifacts: dict[str, ArtifactStored] = {}
    over = not head.state.ended
    for looked_at, (_, fact) in enumerate(store.newest(head)):
        if isinstance(fact, (JobSucceeded, JobFailed, JobCancelled, JobRejected)):
            _end(view, fact)
            over = True
        if over and looked_at >= LOOKED_AT:
            view.more_artifacts = True
            break
        if isinstance(fact, CheckpointStored) and not view.HasField("last_checkpoint"):
            view.last_checkpoint.CopyFrom(filled(pb.CheckpointView, fact))
        if isinstance(fact, ArtifactStored):
            artifacts.setdefault(fact.name, fact)
    view.artifacts.extend(filled(pb.ArtifactView, one) for one in reversed(artifacts.values()))
    return view


def _end(view: pb.JobView, fact: JobSucceeded | JobFailed | JobCancelled | JobRejected) -> None:
    ended = ended_of(fact)
    view.ended_at, view.seconds = fact.at, ended.seconds
    if ended.HasField("failure"):
        view.failure.CopyFrom(ended.failure)
    if ended.HasField("result"):
        view.result.CopyFrom(ended.result)
        view.result.data = b""


def shown(parts: Parts, job: JobId) -> pb.JobView:
    """One job, living or ended, with all that a list shows."""
    head = parts.store.head(job)
    return job_view(parts.store, head, parts.feed.progress(head))


def shown_in_full(parts: Parts, job: JobId) -> pb.JobView:
    """With the record of an image job, which is its work, and what is with its worker."""
    view, head = shown(parts, job), parts.store.head(job)
    if (worker := silent_worker(head, parts.loop.workers())) is not None:
        view.worker_silent_s = max(time.time() - worker.seen_at, 0.001)
    if head.shape.workload is Workload.PIPELINE:
        for document in parts.store.journal.documents([head.submitted_seq]).values():
            work = decode_document(document).work
            if isinstance(work, PipelineCall):
                view.record = msgspec.json.encode(spelled_out(work.record))
    return view


async def views_of(parts: Parts, jobs: Sequence[JobId]) -> AsyncIterator[pb.JobView]:
    """The jobs of a page. Each ended one reads its chain, so others get their turn in between; one
    that is gone since the page was made is left out."""
    for number, job in enumerate(jobs, 1):
        with contextlib.suppress(JobNotFound):
            yield shown(parts, job)
        if not number % TURN:
            await asyncio.sleep(0)


def explanation_view(parts: Parts, job: JobId) -> pb.Explanation:
    loop = parts.loop
    now = loop.snapshot(time.time())
    reason = explain(parts.store, job, loop.workers(), paused=loop.why_paused(), now=now)
    workers = [pb.WhyWorker(worker=name, reason=why) for name, why in reason.workers.items()]
    return filled(pb.Explanation, reason, job_id=job, workers=workers)


def queue_view(parts: Parts) -> pb.QueueView:
    world, pause = parts.store.world, parts.loop.pause
    return pb.QueueView(
        paused=pause.active,
        paused_at=pause.at if pause.active else 0.0,
        paused_by=pause.by if pause.active else "",
        waiting={one.value: count for one, count in world.waiting.items()},
        active=sum(len(held) for held in world.held.values()),
    )


def batch_view(name: str, counted: Counted) -> pb.BatchView:
    over = counted.done == counted.total
    return filled(
        pb.BatchView,
        counted,
        batch=name,
        jobs=counted.total,
        done=counted.done / counted.total,
        ended_at=counted.ended_at if over else 0.0,
    )


async def invitation_view(herd: WorkerAdmin, asked: pb.InviteRequest) -> pb.InviteReply:
    if asked.client:
        client = await herd.invite_client(asked.client, asked.role or Role.SUBMIT, asked.expires_in)
        return pb.InviteReply(invitation=client.text())
    worker, expires_at = await herd.invite_worker(asked.expires_in, asked.uses, renew=asked.renew)
    pin = herd.pin()
    return pb.InviteReply(
        invitation=worker.text(),
        shell=worker.shell(pin),
        powershell=worker.powershell(pin),
        expires_at=expires_at,
    )


async def whole_batch_view(parts: Parts, name: str) -> pb.BatchView:
    batch = await look(name, parts.listing, parts.store.world, parts.loop)
    view = batch_view(batch.name, batch.counted)
    view.model_switches = batch.model_switches
    if batch.left_s is not None:
        view.left_s = batch.left_s
    for worker, share in batch.shares.items():
        view.workers.append(filled(pb.BatchWorker, share, worker=worker))
    return view


def built_view(built: BuiltBatch, *, submitted: bool = False) -> pb.BuildBatchReply:
    return pb.BuildBatchReply(
        batch=built.batch if submitted else "",
        jobs=len(built.jobs),
        warnings=built.warnings,
        estimate_s=built.estimate_s,
    )


def preset_view(preset: Preset) -> pb.PresetView:
    value = msgspec.json.encode(preset.value)
    return pb.PresetView(name=preset.name, saved_at=preset.saved_at, value=value)


def run_view(started: StartedRun) -> pb.LearningRunView:
    result = msgspec.json.encode(started.result)
    return filled(pb.LearningRunView, started.run, started, result=result)


def worker_view(parts: Parts, worker: Worker) -> pb.WorkerView:
    (seat,) = parts.store.world.seats([worker])
    can, room = worker.capabilities, Room(worker, seat.held)
    readings = {one.uuid: (one,) for one in worker.readings}
    return filled(
        pb.WorkerView,
        *(worker, can),
        gpus=[
            filled(
                *(pb.GpuView, gpu, *readings.get(gpu.uuid, ())),
                free=room.capacity.tenths[gpu.uuid] / 10,
            )
            for gpu in can.gpus
        ],
        running=sum(held.count for held in seat.held if held.started),
        waiting=sum(held.count for held in seat.held if not held.started),
        circuit=seat.circuit.told(time.time(), seat.attempts),
        models=[filled(pb.ModelView, one) for one in worker.models],
        servers=[filled(pb.ImageServerView, one) for one in worker.servers],
    )


def worker_page(parts: Parts, after: str = "") -> pb.ListWorkersReply:
    """The next workers by id, behind `after`."""
    behind = (worker for worker in parts.loop.workers() if worker.id > after)
    found = nsmallest(PAGE_WORKERS + 1, behind, key=lambda worker: worker.id)
    reply, size = pb.ListWorkersReply(), 0
    for worker in found[:PAGE_WORKERS]:
        reply.workers.append(view := worker_view(parts, worker))
        size += view.ByteSize()
        if size >= PAGE_BYTES:
            break
    reply.more = len(reply.workers) < len(found)
    return reply


async def worker_pages(parts: Parts) -> AsyncIterator[pb.ListWorkersReply]:
    """All of them, each page as it is when it is asked for."""
    reply = worker_page(parts)
    yield reply
    while reply.more:
        await asyncio.sleep(0)
        reply = worker_page(parts, reply.workers[-1].id)
        yield reply
