"""AsyncClient: everything a program can ask of a controller. The synchronous Client drives it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable
from typing import Any, TypeVar, Unpack, overload

from corral.contract import corral_pb2 as pb
from corral.contract import views
from corral.contract.read_views import read, read_event
from corral.core.errors import CorralError, Unavailable
from corral.core.job import QueueClass, Workload
from corral.sdk import mapping, start_notes
from corral.sdk.administration import AsyncAdministration, AsyncSecrets
from corral.sdk.files import assets
from corral.sdk.files.assets import Asset
from corral.sdk.functions import P, RemoteFunction, decorated
from corral.sdk.handles import AsyncHandle, ProgressSink, Sink, shower, value
from corral.sdk.images import batches
from corral.sdk.images.batches import AsyncBatchHandle, AsyncPresets, Plan
from corral.sdk.images.learning import AsyncLearning
from corral.sdk.start_notes import StartNotes
from corral.sdk.submit.outgoing import HOLD_S, OutgoingJob, function_job, script_job
from corral.sdk.submit.submission import Filters, Options
from corral.sdk.transport.connection import Connection, locate

T = TypeVar("T")


class AsyncClient:
    """A controller's client for asyncio programs.

    >>> async with AsyncClient() as client:          # doctest: +SKIP
    ...     await client.run(train, (3,), gpus=1)
    """

    def __init__(
        self,
        address: str | None = None,
        token: str | None = None,
        *,
        home: str | os.PathLike[str] | None = None,
    ) -> None:
        self._connection = Connection(locate(address, token, home))
        self.admin = AsyncAdministration(self._connection)
        self.secrets = AsyncSecrets(self._connection)
        self.presets = AsyncPresets(self._connection)
        self.learning = AsyncLearning(self._connection)

    @property
    def address(self) -> str:
        return self._connection.door.address

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._connection.close()

    # --- functions ---

    async def run(
        self,
        fn: Callable[..., T],
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        output: Sink = "print",
        progress: ProgressSink = None,
        **options: Unpack[Options],
    ) -> T:
        """Runs a function on a worker: its output appears here, its value is returned and its
        exception raised. Whoever stops waiting cancels the job."""
        job = function_job(fn, args, kwargs, options, QueueClass.INTERACTIVE)
        found: T = await self.follow(job, output, progress)
        return found

    async def submit(
        self,
        fn: Callable[..., Any],
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> AsyncHandle:
        """Hands a function over and returns once it is durably accepted."""
        return await self.hand_over(function_job(fn, args, kwargs, options, QueueClass.BATCH))

    async def map(
        self,
        fn: Callable[..., T],
        iterable: Iterable[Any] | AsyncIterable[Any],
        *more: Iterable[Any],
        ordered: bool = True,
        return_exceptions: bool = False,
        outstanding: int = mapping.OUTSTANDING,
        **options: Unpack[Options],
    ) -> AsyncIterator[T]:
        """The function over each item, lazily; over one of each where there are several iterables.
        A failed item raises in its turn and the rest is cancelled; `return_exceptions` yields the
        errors instead."""
        if more and isinstance(iterable, AsyncIterable):
            raise TypeError("map takes one asynchronous iterable; several are zipped only if plain")
        iterable = zip(iterable, *more) if more else iterable  # type: ignore[arg-type]  # noqa: B905
        steps = mapping.MapCall(
            self._connection,
            fn,
            options,
            spread=bool(more),
            ordered=ordered,
            return_exceptions=return_exceptions,
            outstanding=outstanding,
        ).steps()
        items = None if isinstance(iterable, AsyncIterable) else iter(iterable)
        coming = aiter(iterable) if isinstance(iterable, AsyncIterable) else None
        async with contextlib.aclosing(steps):
            answer: list[Any] | None = None
            while True:
                try:
                    step = await steps.asend(answer)
                except StopAsyncIteration:
                    return
                answer = None
                if not isinstance(step, mapping.WantedItems):
                    for found in step:
                        yield found
                elif items is not None:
                    answer = mapping.take(items, step.most)
                else:
                    assert coming is not None
                    answer = await mapping.take_coming(coming, step.most)

    async def submit_map(
        self,
        fn: Callable[..., Any],
        iterable: Iterable[Any],
        *more: Iterable[Any],
        **options: Unpack[Options],
    ) -> list[AsyncHandle]:
        """The function over each item, as `map` does, but without waiting for results: returns
        once all of them are durably accepted, as one batch."""
        items = zip(iterable, *more) if more else iter(iterable)  # noqa: B905
        call = mapping.MapCall(self._connection, fn, options, spread=bool(more))
        return [
            AsyncHandle(self._connection, job_id, workload=Workload.PYTHON)
            async for job_id in call.submitted(items)
        ]

    @overload
    def function(self, fn: Callable[P, Any], /) -> RemoteFunction[P, Any]: ...
    @overload
    def function(
        self, /, **options: Unpack[Options]
    ) -> Callable[[Callable[P, Any]], RemoteFunction[P, Any]]: ...
    def function(self, fn: Any = None, /, **options: Any) -> Any:
        """Decorator: the function's `.remote()`, `.submit()` and `.map()` use this client, and
        are awaited as its own are."""
        return decorated(lambda: self, fn, options)

    # --- scripts ---

    async def run_script(
        self,
        path: str | os.PathLike[str],
        argv: Iterable[str] = (),
        *,
        entry: str | None = None,
        output: Sink = "print",
        progress: ProgressSink = None,
        **options: Unpack[Options],
    ) -> None:
        """Runs a script or a folder with an entry; an exit code other than 0 is a JobFailed."""
        job = script_job(path, argv, entry, options, QueueClass.INTERACTIVE)
        await self.follow(job, output, progress)

    async def submit_script(
        self,
        path: str | os.PathLike[str],
        argv: Iterable[str] = (),
        *,
        entry: str | None = None,
        **options: Unpack[Options],
    ) -> AsyncHandle:
        return await self.hand_over(script_job(path, argv, entry, options, QueueClass.BATCH))

    # --- input files ---

    async def put(
        self, path: str | os.PathLike[str], *, progress: Callable[[int], object] | None = None
    ) -> Asset:
        """Hands a file over for jobs to have as an input; what the controller has is not sent
        again. `progress` is told how many bytes more are there; without it a large file is shown
        on stderr."""
        return await assets.put(self._connection, path, progress)

    # --- image batches ---

    async def batch(self, plan: Plan, *, key: str | None = None) -> AsyncBatchHandle:
        """Image jobs from a plan, a value or a file: built by the controller and durably accepted
        as one batch when this returns. The same key again is the same batch."""
        return (await batches.build(self._connection, plan, key=key))[0]

    async def preview(self, plan: Plan) -> list[dict[str, Any]]:
        """The records that a plan makes; nothing is submitted."""
        return (await batches.build(self._connection, plan, dry_run=True))[1]

    def open_batch(self, batch: str) -> AsyncBatchHandle:
        """A handle for a batch submitted earlier, perhaps by another program. Asks nothing yet."""
        return AsyncBatchHandle(self._connection, batch)

    async def batches(self, limit: int = 100) -> list[views.BatchView]:
        """Batches, the one with the newest job first; what each worker did of one, and what is
        left, says `open_batch(name).progress()`."""
        request = pb.ListBatchesRequest(limit=limit)
        reply = await self._connection.call("ListBatches", request)
        return [read(one) for one in reply.batches]

    # --- looking around ---

    def job(self, job_id: str) -> AsyncHandle:
        """A handle for a job submitted earlier, perhaps by another program. Asks nothing yet."""
        return AsyncHandle(self._connection, job_id)

    async def jobs(
        self,
        *,
        states: Iterable[str] = (),
        limit: int = 100,
        before: str = "",
        **filters: Unpack[Filters],
    ) -> list[views.JobView]:
        """Newest first; `before` is the last id of the page before."""
        request = pb.ListJobsRequest(states=states, limit=limit, before=before, **filters)
        reply = await self._connection.call("ListJobs", request)
        return [read(job) for job in reply.jobs]

    async def workers(self) -> list[views.WorkerView]:
        found: list[views.WorkerView] = []
        more = True
        while more:
            request = pb.ListWorkersRequest(after=found[-1].id if found else "")
            reply = await self._connection.call("ListWorkers", request)
            found += map(read, reply.workers)
            more = reply.more
        return sorted(found, key=lambda worker: worker.name)

    async def health(self) -> views.Health:
        return await self._connection.ask(views.Health, "HealthCheck", pb.HealthRequest())

    async def backup(
        self,
        write: Callable[[bytes], object],
        progress: Callable[[int, int], object] = lambda done, total: None,
    ) -> None:
        """Everything the controller knows, as one tar file, handed to `write` piece by piece."""
        async with contextlib.aclosing(
            self._connection.stream("Backup", pb.BackupRequest())
        ) as chunks:
            async for chunk in chunks:
                write(chunk.data)
                progress(chunk.done, chunk.total)

    # --- from the call to the wire ---

    async def hand_over(self, job: OutgoingJob) -> AsyncHandle:
        return self.handle_of(await self._send(job))

    def handle_of(self, reply: pb.SubmitJobsReply) -> AsyncHandle:
        warnings = tuple(reply.warnings)
        return AsyncHandle(self._connection, reply.job_ids[0], warnings, workload=Workload.PYTHON)

    async def follow(
        self,
        job: OutgoingJob,
        output: Sink,
        progress: ProgressSink,
        reply: pb.SubmitJobsReply | None = None,
    ) -> Any:
        """Submits and waits a moment on one call, which is all that a short job takes; a longer
        one is followed from there. Whoever stops waiting cancels the job."""
        show = shower(output, progress)
        timer: asyncio.TimerHandle | None = None
        submitting = asyncio.ensure_future(self._send(job, HOLD_S)) if reply is None else None
        try:
            if submitting is not None:
                reply = await asyncio.shield(submitting)
            assert reply is not None
            notes = StartNotes(reply.job_ids[0])
            if output == "print":
                timer = asyncio.get_running_loop().call_later(start_notes.SILENCE_S, notes.silence)
            async with contextlib.aclosing(self._events_behind(reply)) as lists:
                async for messages in lists:
                    for message in messages:
                        event = read_event(message)
                        if isinstance(event, views.Ended):
                            return await value(self._connection, event)
                        if event is not None:
                            notes.see(event)
                            show(event)
        except asyncio.CancelledError:
            with contextlib.suppress(CorralError, TimeoutError):
                async with asyncio.timeout(3):
                    if reply is None:
                        assert submitting is not None
                        reply = await submitting
                    await self.job(reply.job_ids[0]).cancel()
            raise
        finally:
            if timer is not None:
                timer.cancel()
        job_id = reply.job_ids[0]
        raise Unavailable("The controller ended the stream before the job did.", job_id=job_id)

    async def _events_behind(
        self, reply: pb.SubmitJobsReply
    ) -> AsyncGenerator[list[pb.JobEvent], None]:
        yield list(reply.events)
        rest = self._connection.watch(job_id=reply.job_ids[0], after=reply.cursor)
        async with contextlib.aclosing(rest) as lists:
            async for messages in lists:
                yield messages

    async def abandon(self, job: OutgoingJob) -> None:
        """Cancels what was perhaps submitted; asking with the same key finds it."""
        with contextlib.suppress(CorralError, TimeoutError):
            async with asyncio.timeout(3):
                await (await self.hand_over(job)).cancel()

    async def _send(self, job: OutgoingJob, hold_s: float = 0.0) -> pb.SubmitJobsReply:
        """Durably accepted when this returns. The key makes asking again the same job."""
        await self._connection.bring(job.code)
        for blob, data in job.large():
            blob.CopyFrom(await self._connection.put(data, job.name))
        return await self._connection.submit(job.request(hold_s), job.correlation_id)
