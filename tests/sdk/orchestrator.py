"""A controller in memory that speaks the real protocol: what SDK and CLI are tested against.

It runs functions in its own thread and scripts as child processes, at once and one after another.
Its levers break connections, hold jobs back and refuse submissions.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import sys
import tempfile
import threading
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import cloudpickle
import grpc
import grpc.aio

from corral.contract import corral_pb2 as pb
from corral.contract import service
from corral.core.errors import CorralError, InvalidJob, JobNotFound, Unauthorized
from corral.sdk import results

STATUS = {
    "unauthorized": grpc.StatusCode.UNAUTHENTICATED,
    "job_not_found": grpc.StatusCode.NOT_FOUND,
    "no_gpu_workers": grpc.StatusCode.UNAVAILABLE,
}
TOKEN = "open-sesame"


class Record:
    """A job: what was submitted, and every event so far."""

    def __init__(self, job_id: str, submission: pb.JobSubmission) -> None:
        self.id = job_id
        self.submission = submission
        self.events: list[pb.JobEvent] = []
        self.state = "queued"
        self.ended: pb.Ended | None = None
        self.blobs: dict[str, bytes] = {}
        self.retry_of = ""
        self.extended_s = 0.0


class Orchestrator:
    def __init__(self) -> None:
        self.jobs: dict[str, Record] = {}
        self.blobs: dict[str, bytes] = {}
        self.calls: Counter[str] = Counter()
        self.sizes: list[int] = []
        """How many jobs each SubmitJobs message carried."""
        self.watched: list[str] = []
        """The cursors streams were asked to go on from."""
        self.hold = False
        """Accept, but run nothing until released."""
        self.refuse: CorralError | None = None
        self.warnings: list[str] = []
        """What submissions are answered with beside their ids."""
        self.cut_after: int | None = None
        """Cut the next stream after this many messages."""
        self.forget_answers = 0
        """Accept this many submissions and lose the answer on the way."""
        self.workers: list[pb.WorkerView] = []
        self.queue = pb.QueueView()
        self.accepted = threading.Event()
        """Set by the first accepted job."""
        self.secrets: dict[str, str] = {}
        self._keys: dict[str, str] = {}
        self._ends: list[pb.JobEvent] = []
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._scripts: list[asyncio.subprocess.Process] = []

    # --- the service ---

    def __getattr__(self, name: str) -> Any:
        """Methods that no test of the SDK asks this fake for."""
        if name not in service.METHODS:
            raise AttributeError(name)

        async def unimplemented(request: Any, context: Any) -> None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{name} is not faked here")

        return unimplemented

    async def SubmitJob(self, request: pb.JobSubmission, context: Any) -> AsyncIterator[Any]:
        await self._enter("SubmitJob", context)
        record = await self._accept(request, context)
        await self._lose_answer(context)
        async for events in self._behind(record, 0, context):
            for event in events:
                yield event

    async def SubmitJobs(self, request: pb.SubmitJobsRequest, context: Any) -> Any:
        await self._enter("SubmitJobs", context)
        jobs = list(request.jobs)
        for call in request.calls:
            job = pb.JobSubmission()
            job.CopyFrom(request.like)
            job.function.arguments.CopyFrom(call.arguments)
            job.idempotency_key = call.idempotency_key
            jobs.append(job)
        self.sizes.append(len(jobs))
        accepted = [(await self._accept(job, context)).id for job in jobs]
        await self._lose_answer(context)
        return pb.SubmitJobsReply(job_ids=accepted, warnings=self.warnings)

    async def WatchJobs(self, request: pb.WatchRequest, context: Any) -> AsyncIterator[Any]:
        await self._enter("WatchJobs", context)
        self.watched.append(request.after)
        begin = int(request.after or 0)
        if request.batch:
            async for events in self._batch_behind(request.batch, begin):
                yield pb.JobEvents(events=events)
            return
        record = await self._known(request.job_id, context)
        if request.until_now:
            yield pb.JobEvents(events=record.events[begin:])
            return
        async for events in self._behind(record, begin, context):
            kept = [one for one in events if one.HasField("ended") or not request.ends_only]
            yield pb.JobEvents(events=kept)

    async def GetJobStatus(self, request: pb.JobRequest, context: Any) -> Any:
        await self._enter("GetJobStatus", context)
        return self._view(await self._known(request.job_id, context))

    async def ListArtifacts(self, request: pb.ListArtifactsRequest, context: Any) -> Any:
        await self._enter("ListArtifacts", context)
        stored = self._view(await self._known(request.job_id, context)).artifacts
        named = [one for one in stored if request.name in ("", one.name)]
        return pb.ListArtifactsReply(artifacts=named)

    async def ListJobs(self, request: pb.ListJobsRequest, context: Any) -> Any:
        await self._enter("ListJobs", context)
        found = [
            self._view(record)
            for record in sorted(self.jobs.values(), key=lambda r: r.id, reverse=True)
            if (not request.before or record.id < request.before)
            and (not request.states or record.state in request.states)
            and (not request.batch or record.submission.batch == request.batch)
            and (not request.active or record.ended is None)
        ]
        return pb.ListJobsReply(jobs=found[: request.limit or 100])

    async def CancelJob(self, request: pb.JobRequest, context: Any) -> Any:
        await self._enter("CancelJob", context)
        record = await self._known(request.job_id, context)
        if record.ended is None:
            await self._end(record, pb.Ended(state="cancelled"))
        return self._view(record)

    async def CancelBatch(self, request: pb.BatchRequest, context: Any) -> Any:
        await self._enter("CancelBatch", context)
        living = [
            record
            for record in self.jobs.values()
            if record.submission.batch == request.batch and record.ended is None
        ]
        for record in living:
            await self._end(record, pb.Ended(state="cancelled"))
        return pb.CancelBatchReply(cancelled=len(living))

    async def RetryJob(self, request: pb.JobRequest, context: Any) -> Any:
        await self._enter("RetryJob", context)
        old = await self._known(request.job_id, context)
        again = pb.JobSubmission()
        again.CopyFrom(old.submission)
        again.idempotency_key = ""
        record = await self._accept(again, context)
        record.retry_of = old.id
        return self._view(record)

    async def ExtendJob(self, request: pb.ExtendRequest, context: Any) -> Any:
        await self._enter("ExtendJob", context)
        record = await self._known(request.job_id, context)
        record.extended_s += request.by
        return self._view(record)

    async def ExplainJob(self, request: pb.JobRequest, context: Any) -> Any:
        await self._enter("ExplainJob", context)
        record = await self._known(request.job_id, context)
        return pb.Explanation(
            job_id=record.id,
            state=record.state,
            summary="It waits for a worker with 2 GPUs.",
            workers=[pb.WhyWorker(worker="attic", reason="needs 2 GPUs, has 1")],
            history=["submitted"],
        )

    async def ListWorkers(self, request: pb.ListWorkersRequest, context: Any) -> Any:
        await self._enter("ListWorkers", context)
        return pb.ListWorkersReply(workers=self.workers)

    async def HealthCheck(self, request: pb.HealthRequest, context: Any) -> Any:
        await self._enter("HealthCheck", context)
        return pb.HealthReply(status="ok", version="0", started_at=time.time(), workers=1)

    async def GetQueue(self, request: pb.QueueRequest, context: Any) -> Any:
        await self._enter("GetQueue", context)
        return self.queue

    async def FindAsset(self, request: pb.AssetRequest, context: Any) -> pb.AssetReply:
        await self._enter("FindAsset", context)
        data = self.blobs.get(request.sha256)
        if data is None:
            return pb.AssetReply()
        return pb.AssetReply(known=True, sha256=request.sha256, size=len(data))

    async def PutAsset(self, chunks: AsyncIterator[pb.Chunk], context: Any) -> Any:
        await self._enter("PutAsset", context)
        data = b"".join([chunk.data async for chunk in chunks])
        sha256 = hashlib.sha256(data).hexdigest()
        self.blobs[sha256] = data
        return pb.BlobRef(sha256=sha256, size=len(data))

    async def PutPackage(self, chunks: AsyncIterator[pb.Chunk], context: Any) -> Any:
        await self._enter("PutPackage", context)
        data = b"".join([chunk.data async for chunk in chunks])
        digest = hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        return pb.BlobRef(sha256=digest, size=len(data))

    async def GetBlob(self, request: pb.BlobRequest, context: Any) -> AsyncIterator[Any]:
        await self._enter("GetBlob", context)
        record = await self._known(request.job_id, context)
        data = record.blobs[request.name]
        for count, start in enumerate(range(0, len(data), 1000)):
            if self.cut_after == count:
                self.cut_after = None
                await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
            yield pb.Chunk(data=data[start : start + 1000])

    async def Backup(self, request: pb.BackupRequest, context: Any) -> AsyncIterator[Any]:
        await self._enter("Backup", context)
        yield pb.BackupChunk(data=b"no backup", done=9, total=9)

    async def SetSecret(self, request: pb.SetSecretRequest, context: Any) -> Any:
        await self._enter("SetSecret", context)
        self.secrets[request.name] = request.value
        return pb.SecretView(name=request.name, set_at=time.time())

    async def ListSecrets(self, request: pb.ListSecretsRequest, context: Any) -> Any:
        await self._enter("ListSecrets", context)
        return pb.ListSecretsReply(
            secrets=[pb.SecretView(name=name, set_at=time.time()) for name in self.secrets]
        )

    async def RemoveSecret(self, request: pb.RemoveSecretRequest, context: Any) -> Any:
        await self._enter("RemoveSecret", context)
        del self.secrets[request.name]
        return pb.SecretView(name=request.name)

    # --- what tests pull ---

    async def release(self) -> None:
        """Runs what was held back."""
        self.hold = False
        for record in list(self.jobs.values()):
            if record.state == "queued":
                self._start(record)

    async def emit(self, job_id: str, **event: Any) -> None:
        await self._tell(self.jobs[job_id], **event)

    async def end(self, job_id: str, ended: pb.Ended) -> None:
        await self._end(self.jobs[job_id], ended)

    async def end_scripts(self) -> None:
        for process in self._scripts:
            if process.returncode is None:
                process.kill()
            await process.wait()

    # --- inside ---

    async def _enter(self, method: str, context: Any) -> None:
        self.calls[method] += 1
        metadata = dict(context.invocation_metadata())
        if metadata.get("authorization") != f"Bearer {TOKEN}":
            await _abort(context, Unauthorized("This token is not known here."))

    async def _lose_answer(self, context: Any) -> None:
        if self.forget_answers:
            self.forget_answers -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "lost")

    async def _known(self, job_id: str, context: Any) -> Record:
        if job_id not in self.jobs:
            await _abort(context, JobNotFound(f"There is no job {job_id}.", job_id=job_id))
        return self.jobs[job_id]

    async def _accept(self, submission: pb.JobSubmission, context: Any) -> Record:
        if self.refuse:
            await _abort(context, self.refuse)
        key = submission.idempotency_key
        if key and key in self._keys:
            return self.jobs[self._keys[key]]
        for ref in _refs(submission):
            if ref.data:
                digest = hashlib.sha256(ref.data).hexdigest()
                assert ref.sha256 in ("", digest)
                ref.sha256 = digest
                self.blobs[ref.sha256] = ref.data
            elif ref.sha256 not in self.blobs:
                await _abort(context, InvalidJob(f"There is no package {ref.sha256}."))
        job_id = f"{len(self.jobs) + 1:09d}job000"
        record = self.jobs[job_id] = Record(job_id, submission)
        self.accepted.set()
        if key:
            self._keys[key] = job_id
        await self._tell(record, state=pb.StateChanged(state="queued"))
        if not self.hold:
            self._start(record)
        return record

    def _start(self, record: Record) -> None:
        record.state = "placed"
        task = asyncio.ensure_future(self._run(record))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, record: Record) -> None:
        record.state = "running"
        await self._tell(record, state=pb.StateChanged(state="running", worker="attic"))
        if record.submission.HasField("function"):
            ended = await self._run_function(record)
        else:
            ended = await self._run_script(record)
        await self._end(record, ended)

    async def _run_function(self, record: Record) -> pb.Ended:
        call = record.submission.function
        written = io.StringIO()
        try:
            function = results.value_of(self.blobs[call.function.sha256])
            args, kwargs = results.value_of(self.blobs[call.arguments.sha256])
            with contextlib.redirect_stdout(written):
                result = cloudpickle.dumps(function(*args, **kwargs))
        except Exception as error:
            failure = pb.Failure(
                code="exception",
                type=type(error).__name__,
                message=str(error),
                traceback=traceback.format_exc(),
                pickled=cloudpickle.dumps(error),
            )
            return pb.Ended(state="failed", failure=failure)
        if text := written.getvalue():
            await self._tell(record, output=pb.Output(stream="stdout", data=text.encode()))
        record.blobs["result"] = result
        ref = pb.BlobRef(sha256=hashlib.sha256(result).hexdigest(), size=len(result))
        ref.data = result if len(result) <= 8192 else b""
        return pb.Ended(state="succeeded", result=ref, seconds=0.01)

    async def _run_script(self, record: Record) -> pb.Ended:
        """A line `##progress 0.5 words` becomes progress."""
        script = record.submission.script
        with tempfile.TemporaryDirectory() as folder:
            zipfile.ZipFile(io.BytesIO(self.blobs[script.package.sha256])).extractall(folder)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                script.entry,
                *script.argv,
                cwd=folder,
                env=dict(record.submission.env),
                stdout=asyncio.subprocess.PIPE,
            )
            self._scripts.append(process)
            assert process.stdout is not None
            async for line in process.stdout:
                if line.startswith(b"##progress"):
                    _, share, message = line.decode().split(maxsplit=2)
                    progress = pb.Progress(fraction=float(share), message=message.strip())
                    await self._tell(record, progress=progress)
                else:
                    await self._tell(record, output=pb.Output(stream="stdout", data=line))
            code = await process.wait()
        if code == 0:
            return pb.Ended(state="succeeded", seconds=0.01)
        failure = pb.Failure(code="exit_code", message=f"exit code {code}", exit_code=code)
        return pb.Ended(state="failed", failure=failure)

    async def _tell(self, record: Record, **event: Any) -> None:
        cursor = str(len(record.events) + 1)
        told = pb.JobEvent(job_id=record.id, cursor=cursor, at=time.time(), attempt=1, **event)
        record.events.append(told)
        if told.HasField("ended"):
            self._ends.append(told)
        async with self._changed:
            self._changed.notify_all()

    async def _end(self, record: Record, ended: pb.Ended) -> None:
        if record.ended is None:
            record.state, record.ended = ended.state, ended
            await self._tell(record, ended=ended)

    async def _behind(
        self, record: Record, begin: int, context: Any
    ) -> AsyncIterator[list[pb.JobEvent]]:
        sent = 0
        while True:
            async with self._changed:
                while len(record.events) <= begin:
                    await self._changed.wait()
            for event in record.events[begin:]:
                if self.cut_after == sent:
                    self.cut_after = None
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")
                yield [event]
                sent += 1
                begin += 1
                if event.HasField("ended"):
                    return

    async def _batch_behind(self, batch: str, begin: int) -> AsyncIterator[list[pb.JobEvent]]:
        while True:
            async with self._changed:
                while len(self._ends) <= begin:
                    await self._changed.wait()
            found = []
            for index in range(begin, len(self._ends)):
                ended = self._ends[index]
                if self.jobs[ended.job_id].submission.batch == batch:
                    copy = pb.JobEvent()
                    copy.CopyFrom(ended)
                    copy.cursor = str(index + 1)
                    found.append(copy)
            begin = len(self._ends)
            if self.cut_after == 0:
                self.cut_after = None
                return
            if found:
                yield found

    def _view(self, record: Record) -> pb.JobView:
        view = pb.JobView(
            job_id=record.id,
            name=record.submission.name,
            state=record.state,
            queue_class=record.submission.queue_class,
            attempt=1,
            worker="attic",
            workload="python",
            batch=record.submission.batch,
            retry_of=record.retry_of,
            duration=(record.submission.duration or 3600) + record.extended_s,
            submitted_at=time.time(),
            artifacts=[
                pb.ArtifactView(
                    name=name, size=len(data), file_sha256=hashlib.sha256(data).hexdigest()
                )
                for name, data in record.blobs.items()
                if name != "result"
            ],
        )
        if record.ended is not None:
            view.ended_at = time.time()
            if record.ended.HasField("failure"):
                view.failure.CopyFrom(record.ended.failure)
            if record.ended.HasField("result"):
                view.result.CopyFrom(record.ended.result)
        return view


def _refs(submission: pb.JobSubmission) -> list[pb.BlobRef]:
    if submission.HasField("function"):
        return [submission.function.function, submission.function.arguments]
    return [submission.script.package]


async def _abort(context: Any, error: CorralError) -> NoReturn:
    await context.abort(
        STATUS.get(error.code, grpc.StatusCode.FAILED_PRECONDITION),
        error.message,
        trailing_metadata=((service.ERROR_KEY, json.dumps(error.view())),),
    )
    raise AssertionError("abort raises")


class Served:
    """The orchestrator on a port, in a thread with an event loop of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda loop, context: None)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: grpc.aio.Server | None = None
        self.orchestrator: Orchestrator

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Served:
        self._thread.start()
        self.call(self._make)
        self.start()
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "token").write_text(TOKEN + "\n")
        card = {"pid": 0, "grpc": self.address, "http": "http://127.0.0.1:1", "started_at": 0}
        (self.home / "controller.json").write_text(json.dumps(card))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, function: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **kw: Any) -> Any:
        """Runs one of the orchestrator's coroutines where it lives."""
        return asyncio.run_coroutine_threadsafe(function(*args, **kw), self._loop).result(20)

    async def _make(self) -> None:
        self.orchestrator = Orchestrator()

    def start(self) -> None:
        self.call(self._start)

    async def _start(self) -> None:
        self._server = grpc.aio.server(options=list(service.SERVER_OPTIONS))
        self._server.add_generic_rpc_handlers((service.handler(self.orchestrator),))
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    def stop(self) -> None:
        """Hangs up on everybody; what was accepted stays accepted."""
        self.call(self._stop)

    async def _stop(self) -> None:
        assert self._server is not None
        await self.orchestrator.end_scripts()
        await self._server.stop(None)
