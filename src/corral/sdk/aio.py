"""AsyncClient: everything a program can ask of a controller. The synchronous Client drives it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from corral.api import corral_pb2 as pb
from corral.core.errors import CorralError, Unavailable
from corral.core.job import QueueClass
from corral.sdk import mapping, packages, submission, views
from corral.sdk.administration import AsyncAdministration
from corral.sdk.connection import Connection, locate
from corral.sdk.handles import AsyncHandle, Text, value
from corral.sdk.submission import Filters, Options
from corral.sdk.vault import AsyncSecrets

if TYPE_CHECKING:
    from corral.sdk.functions import P, RemoteFunction

T = TypeVar("T")
HOLD_S = 0.05
"""How long the answer to `run` waits for a short job; its output then comes with it."""
Sink = Literal["print"] | Callable[[str, str], object] | None
"""Where live output goes: this process's own streams, a callable `(stream, text)`, or nowhere."""


class AsyncClient:
    """A controller's client for asyncio programs.

    >>> async with AsyncClient() as client:          # doctest: +SKIP
    ...     await client.run(train, (3,), gpus=1)
    """

    def __init__(
        self, address: str | None = None, token: str | None = None, *, home: Path | None = None
    ) -> None:
        self._connection = Connection(locate(address, token, home))
        self.secrets = AsyncSecrets(self._connection)

    @property
    def address(self) -> str:
        return self._connection.door.address

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        **options: Unpack[Options],
    ) -> T:
        """Runs a function on a worker: its output appears here, its value is returned and its
        exception raised. Whoever stops waiting cancels the job."""
        job = await self._function(fn, args, kwargs, options, QueueClass.INTERACTIVE)
        found: T = await self._follow(job, output, submission.correlation_id(options))
        return found

    async def submit(
        self,
        fn: Callable[..., Any],
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        **options: Unpack[Options],
    ) -> AsyncHandle:
        """Hands a function over and returns once it is durably accepted."""
        job = await self._function(fn, args, kwargs, options, QueueClass.BATCH)
        return await self._submit(job, submission.correlation_id(options))

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
        steps = self.map_steps(
            fn,
            options,
            spread=bool(more),
            ordered=ordered,
            return_exceptions=return_exceptions,
            outstanding=outstanding,
        )
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
                if not isinstance(step, mapping.Wanted):
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
        correlation_id = submission.correlation_id(options)
        items = zip(iterable, *more) if more else iter(iterable)  # noqa: B905
        template = submission.build(options, queue_class=QueueClass.BATCH, name=_name(fn))
        accepted = mapping.submit(
            self._connection, fn, template, items, spread=bool(more), correlation_id=correlation_id
        )
        return [AsyncHandle(self._connection, job_id) async for job_id in accepted]

    def map_steps(
        self,
        fn: Callable[..., Any],
        options: Options,
        *,
        spread: bool,
        ordered: bool,
        return_exceptions: bool,
        outstanding: int,
    ) -> AsyncGenerator[mapping.Step, list[Any] | None]:
        """`map` as the generator that its driver feeds (see `sdk.mapping`)."""
        template = submission.build(options, queue_class=QueueClass.BATCH, name=_name(fn))
        return mapping.Mapping(
            self._connection,
            fn,
            template,
            spread=spread,
            ordered=ordered,
            return_exceptions=return_exceptions,
            outstanding=outstanding,
            correlation_id=submission.correlation_id(options),
        ).steps()

    @overload
    def function(self, fn: Callable[P, Any], /) -> RemoteFunction[P, Any]: ...
    @overload
    def function(
        self, /, **options: Unpack[Options]
    ) -> Callable[[Callable[P, Any]], RemoteFunction[P, Any]]: ...
    def function(self, fn: Any = None, /, **options: Any) -> Any:
        """Decorator: the function's `.remote()`, `.submit()` and `.map()` use this client, and
        are awaited as its own are."""
        from corral.sdk.functions import decorator

        decorate = decorator(lambda: self, options)  # type: ignore[arg-type]
        return decorate if fn is None else decorate(fn)

    # --- scripts ---

    async def run_script(
        self,
        path: str | os.PathLike[str],
        argv: Iterable[str] = (),
        *,
        entry: str | None = None,
        output: Sink = "print",
        **options: Unpack[Options],
    ) -> None:
        """Runs a script or a folder with an entry; an exit code other than 0 is a JobFailed."""
        job = await self._script(path, argv, entry, options, QueueClass.INTERACTIVE)
        await self._follow(job, output, submission.correlation_id(options))

    async def submit_script(
        self,
        path: str | os.PathLike[str],
        argv: Iterable[str] = (),
        *,
        entry: str | None = None,
        **options: Unpack[Options],
    ) -> AsyncHandle:
        job = await self._script(path, argv, entry, options, QueueClass.BATCH)
        return await self._submit(job, submission.correlation_id(options))

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
        return [views.read(job) for job in reply.jobs]

    @property
    def admin(self) -> AsyncAdministration:
        """The queue as a whole, and the tokens of clients."""
        return AsyncAdministration(self._connection)

    async def workers(self) -> list[views.WorkerView]:
        reply = await self._connection.call("ListWorkers", pb.ListWorkersRequest())
        return [views.read(worker) for worker in reply.workers]

    async def health(self) -> views.Health:
        health: views.Health = views.read(
            await self._connection.call("HealthCheck", pb.HealthRequest())
        )
        return health

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

    async def _function(
        self,
        fn: Callable[..., Any],
        args: Iterable[Any],
        kwargs: dict[str, Any] | None,
        options: Options,
        queue_class: QueueClass,
    ) -> pb.JobSubmission:
        job = submission.build(options, queue_class=queue_class, name=_name(fn))
        given = submission.arguments(args, kwargs)
        function = packages.pickle_function(fn)
        arguments = packages.pickle_arguments(*given)
        job.function.function.CopyFrom(await self._blob(function))
        job.function.arguments.CopyFrom(await self._blob(arguments))
        return job

    async def _script(
        self,
        path: str | os.PathLike[str],
        argv: Iterable[str],
        entry: str | None,
        options: Options,
        queue_class: QueueClass,
    ) -> pb.JobSubmission:
        target = Path(path)
        job = submission.build(options, queue_class=queue_class, name=target.resolve().name)
        package, entry = packages.pack(target, entry)
        job.script.package.CopyFrom(await self._blob(package))
        job.script.entry = entry
        job.script.argv.extend(str(word) for word in argv)
        return job

    async def _blob(self, data: bytes) -> pb.BlobRef:
        if submission.rides_along(data):
            return submission.blob(data)
        return await self._connection.put(data)

    async def _submit(self, job: pb.JobSubmission, correlation_id: str) -> AsyncHandle:
        reply = await self._hand_over(job, correlation_id)
        return AsyncHandle(self._connection, reply.job_ids[0], tuple(reply.warnings))

    async def _follow(self, job: pb.JobSubmission, output: Sink, correlation_id: str) -> Any:
        """Submits and waits a moment on one call, which is all that a short job takes; a longer
        one is followed from there. Whoever stops waiting cancels the job."""
        show = _shower(output)
        job_id = ""
        submitting = asyncio.ensure_future(self._hand_over(job, correlation_id, HOLD_S))
        try:
            reply = await asyncio.shield(submitting)
            job_id, events = reply.job_ids[0], reply.events
            for message in events:
                event = views.read_event(message)
                if isinstance(event, views.Ended):
                    return await value(self._connection, event)
                if isinstance(event, views.Output):
                    show(event)
            rest = self._connection.watch(job_id=job_id, after=reply.cursor)
            async with contextlib.aclosing(rest) as lists:
                async for messages in lists:
                    for message in messages:
                        event = views.read_event(message)
                        if isinstance(event, views.Output):
                            show(event)
                        elif isinstance(event, views.Ended):
                            return await value(self._connection, event)
        except asyncio.CancelledError:
            with contextlib.suppress(CorralError, TimeoutError):
                async with asyncio.timeout(3):
                    job_id = job_id or (await submitting).job_ids[0]
                    await self.job(job_id).cancel()
            raise
        raise Unavailable("The controller ended the stream before the job did.", job_id=job_id)

    async def _hand_over(
        self, job: pb.JobSubmission, correlation_id: str, hold_s: float = 0.0
    ) -> pb.SubmitJobsReply:
        """Durably accepted when this returns. The key makes asking again the same job."""
        job.idempotency_key = job.idempotency_key or uuid.uuid4().hex
        request = pb.SubmitJobsRequest(jobs=[job], hold_s=hold_s)
        reply: pb.SubmitJobsReply = await self._connection.call(
            "SubmitJobs", request, correlation_id=correlation_id
        )
        return reply


def _shower(output: Sink) -> Callable[[views.Output], None]:
    text = Text()
    if output is None:
        return lambda _: None
    if callable(output):
        sink = output
        return lambda event: (sink(event.stream, text(event)), None)[1]
    if output != "print":
        raise TypeError(f"output is 'print', None or a callable (stream, text); got {output!r}")

    def show(event: views.Output) -> None:
        target = sys.stderr if event.stream == "stderr" else sys.stdout
        target.write(text(event))
        target.flush()

    return show


def _name(fn: Any) -> str:
    return str(getattr(fn, "__qualname__", None) or type(fn).__name__).rpartition("<locals>.")[2]
