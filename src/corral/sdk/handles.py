"""Handles of single jobs; and where the output of a job that somebody waits for goes."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, Unpack

from msgspec.structs import replace

from corral.contract import corral_pb2 as pb
from corral.contract import views
from corral.contract.read_views import ended_of, read, read_event
from corral.core.errors import BlobNotFound, Forbidden, InvalidJob, JobError
from corral.core.job import State, Workload
from corral.core.text import seconds
from corral.sdk import remote_errors, results, start_notes
from corral.sdk.bridge import Bridged, bridged, shared_bridge
from corral.sdk.files import downloads
from corral.sdk.transport.connection import Connection

T = TypeVar("T")


class RetryOptions(TypedDict, total=False):
    """What a job that is submitted once more may be given anew."""

    worker: str
    """The only one that may have it."""
    apart: bool
    """It does not count for the first one's batch."""
    from_start: bool
    """Not from its last checkpoint."""
    duration: float | str
    retries: int
    memory_gb: float
    backend: str
    """The kind that renders its images."""


class AsyncHandle:
    """One job, for as long as somebody is interested in it. It holds nothing open by itself."""

    def __init__(
        self,
        connection: Connection,
        job_id: str,
        warnings: tuple[str, ...] = (),
        *,
        workload: str = "",
    ) -> None:
        self.id = job_id
        self.warnings = warnings
        self._workload = workload
        """Decides how its result is read; empty: to be asked."""
        self._connection = connection
        self._ended: views.Ended | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def events(self, after: str = "", *, follow: bool = True) -> AsyncIterator[views.Event]:
        """Everything that happens to the job, from its beginning or behind a cursor, to its end;
        without `follow` only what has happened until now."""
        return _each(self.event_lists(after, follow=follow))

    async def event_lists(
        self, after: str = "", *, follow: bool = True
    ) -> AsyncGenerator[list[views.Event], None]:
        """The same, as many at a time as arrived together."""
        watched = self._connection.watch(job_id=self.id, after=after, until_now=not follow)
        async with contextlib.aclosing(watched) as lists:
            async for messages in lists:
                yield self._read(messages)

    def _read(self, messages: list[pb.JobEvent]) -> list[views.Event]:
        events = [event for event in map(read_event, messages) if event]
        if events and isinstance(events[-1], views.Ended):
            self._ended = events[-1]
        return events

    def logs(self, follow: bool = True) -> AsyncIterator[str]:
        """What the job wrote, as text: all of it until now, and with `follow` until its end."""
        return _each(self.log_lists(follow))

    async def log_lists(self, follow: bool = True) -> AsyncGenerator[list[str], None]:
        """The same, as many pieces at a time as arrived together."""
        read = Text()
        async with contextlib.aclosing(self.event_lists(follow=follow)) as lists:
            async for events in lists:
                yield [read(event) for event in events if isinstance(event, views.Output)]

    async def result(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        """The job's value; its failure raises. TimeoutError leaves the job running."""
        async with within(timeout, f"Job {self.id}"):
            ended = await self._wait()
            workload = self._workload or (await self.status()).workload or Workload.PYTHON
            return await value(self._connection, ended, workload)

    async def _wait(self) -> views.Ended:
        if self._ended is None:
            self._ended = ended_of(await self.status())
        if self._ended is None:
            async for messages in self._connection.watch(job_id=self.id, ends_only=True):
                self._read(messages)
        assert self._ended is not None
        return self._ended

    async def cancel(self) -> views.JobView:
        return await self._ask("CancelJob")

    async def retry(self, **asked: Unpack[RetryOptions]) -> AsyncHandle:
        """The same work once more, as a new job. What did not succeed goes on from its last
        checkpoint."""
        duration = asked.get("duration")
        if isinstance(duration, str):
            asked["duration"] = seconds(duration, "duration")
        for name in asked:
            if name not in RetryOptions.__annotations__:
                raise TypeError(f"retry() is given no {name!r}")
        try:
            request = pb.RetryRequest(job_id=self.id, **asked)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise InvalidJob(f"What the retry is given is not possible: {error}.") from None
        view = await self._connection.call("RetryJob", request, again=False)
        warnings = tuple(view.warnings)
        return AsyncHandle(self._connection, view.job_id, warnings, workload=view.workload)

    async def extend(self, by: float | str) -> views.JobView:
        """More time for a job that waits or runs, also for the attempts that follow: seconds, or
        as `"2h"`."""
        more_s = seconds(by, "extend") if isinstance(by, str) else by
        try:
            request = pb.ExtendRequest(job_id=self.id, by=more_s)
        except TypeError as error:
            raise InvalidJob(f"A job is extended by seconds, or by '2h'; got {by!r}.") from error
        view: views.JobView = read(await self._connection.call("ExtendJob", request, again=False))
        return view

    async def to_front(self) -> views.JobView:
        """Before all waiting jobs of its class and priority, also after a restart."""
        return await self._ask("MoveToFront")

    async def status(self) -> views.JobView:
        return await self._ask("GetJobStatus")

    async def why(self) -> views.Explanation:
        """Why the job waits, runs where it runs, or ended as it did."""
        request = pb.JobRequest(job_id=self.id)
        return await self._connection.ask(views.Explanation, "ExplainJob", request)

    async def artifacts(self) -> tuple[views.Artifact, ...]:
        """All that it stored, in that order, also where its view shows only some."""
        found: list[views.Artifact] = []
        while True:
            after = found[-1].name if found else ""
            request = pb.ListArtifactsRequest(job_id=self.id, after=after)
            page = await self._connection.call("ListArtifacts", request)
            found += [read(one) for one in page.artifacts]
            if not page.more:
                return tuple(found)

    async def download(
        self,
        name: str,
        path: str | os.PathLike[str] | None = None,
        *,
        overwrite: bool = False,
    ) -> Path:
        """Writes an artifact to a file (by default one of its own name here), whole or not at
        all. Another file in its place is a FileExistsError, unless `overwrite` says otherwise."""
        digest = ""
        with contextlib.suppress(BlobNotFound):  # it may be its result
            request = pb.ListArtifactsRequest(job_id=self.id, name=name)
            found = await self._connection.call("ListArtifacts", request)
            digest = found.artifacts[0].file_sha256
        target = Path(path or ".")
        if target.is_dir():
            target = downloads.place(target, Path(name).name)
            if downloads.is_hidden(target.name) and not overwrite:
                raise Forbidden(
                    f"The artifact {name!r} would be a hidden file, which programs may obey. Give "
                    "the path of a file for it, or overwrite=True."
                )
        await downloads.fetch(self._connection, self.id, name, digest, target, overwrite=overwrite)
        return target

    async def _ask(self, method: str) -> views.JobView:
        view: views.JobView = read(
            await self._connection.call(method, pb.JobRequest(job_id=self.id))
        )
        self._workload = view.workload
        return view


@contextlib.asynccontextmanager
async def within(seconds: float | None, what: str) -> AsyncIterator[None]:
    """A wait that ends nothing but itself."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        if isinstance(error, JobError):
            raise  # the job's own
        raise TimeoutError(
            f"{what} has not ended within {seconds:g} s; it goes on. Ask again, or cancel() it."
        ) from None


async def _each(lists: AsyncGenerator[list[T], None]) -> AsyncIterator[T]:
    async with contextlib.aclosing(lists):
        async for found in lists:
            for one in found:
                yield one


class Handle(Bridged[AsyncHandle]):
    """One job of a synchronous program."""

    def __init__(self, handle: AsyncHandle) -> None:
        super().__init__(handle)
        self.id, self.warnings = handle.id, handle.warnings

    def __repr__(self) -> str:
        return f"<Handle {self.id}>"

    result = bridged(AsyncHandle.result)
    cancel = bridged(AsyncHandle.cancel)
    extend = bridged(AsyncHandle.extend)
    to_front = bridged(AsyncHandle.to_front)
    status = bridged(AsyncHandle.status)
    why = bridged(AsyncHandle.why)
    artifacts = bridged(AsyncHandle.artifacts)
    download = bridged(AsyncHandle.download)

    def events(self, after: str = "", *, follow: bool = True) -> Iterator[views.Event]:
        """Everything that happens to the job, as AsyncHandle has it."""
        return shared_bridge().each(self._asynchronous.event_lists(after, follow=follow))

    def logs(self, follow: bool = True) -> Iterator[str]:
        """What the job wrote, as text: all of it until now, and with `follow` until its end."""
        return shared_bridge().each(self._asynchronous.log_lists(follow))

    def retry(self, **asked: Unpack[RetryOptions]) -> Handle:
        """The same work once more, as a new job."""
        return Handle(shared_bridge().call(self._asynchronous.retry(**asked)))


async def value(connection: Connection, ended: views.Ended, workload: str = Workload.PYTHON) -> Any:
    """The value a job ended with, or the error it means."""
    if ended.state != State.SUCCEEDED:
        failure = ended.failure
        if failure is not None and not results.is_pickled(workload):
            failure = replace(failure, pickled=None)
        raise remote_errors.error_of(ended.job_id, ended.state, failure)
    if ended.result is None:
        return None
    data = ended.result.data
    if data is None:
        pieces: list[bytes] = []
        await connection.get(ended.job_id, "result", ended.result.sha256, pieces.append)
        data = b"".join(pieces)
    return results.value_of(data, workload, job_id=ended.job_id)


class Text:
    """Turns output into text; a character may be cut between two events of a stream."""

    def __init__(self) -> None:
        new = codecs.getincrementaldecoder("utf-8")
        self._decoders: dict[str, codecs.IncrementalDecoder] = defaultdict(lambda: new("replace"))

    def __call__(self, output: views.Output) -> str:
        if output.skipped:  # what is missing there belongs to any stream
            rests = (decoder.decode(b"", final=True) for decoder in self._decoders.values())
            return "".join((*rests, f"\n[… {output.skipped} bytes left out …]\n"))
        return self._decoders[output.stream].decode(output.data)


Sink = Literal["print"] | Callable[[str, str], object] | None
"""Where live output goes: this process's own streams, a callable `(stream, text)`, or nowhere."""


ProgressSink = Callable[[views.Progress], object] | None
"""What is called with each progress that the job tells."""


def shower(output: Sink, progress: ProgressSink = None) -> Callable[[views.Event], None]:
    """Shows what a job tells on its way."""
    write = _writer(output)

    def show(event: views.Event) -> None:
        if isinstance(event, views.Output):
            write(event)
        elif isinstance(event, views.Progress) and progress is not None:
            progress(event)
        elif output == "print" and (failed := start_notes.failed_attempt(event)):
            start_notes.say(failed)

    return show


def _writer(output: Sink) -> Callable[[views.Output], None]:
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
