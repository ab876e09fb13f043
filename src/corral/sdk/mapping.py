"""One function over many items: batched on the wire, bounded in flight, streaming back.

`MapCall.steps` is the whole algorithm as a generator that asks its driver for items and hands it
results. The asynchronous and the synchronous `map` differ only in who drives, so user code always
runs where the caller is. Per item there is no task, no future and no protobuf beyond its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from corral.contract import corral_pb2 as pb
from corral.contract.read_views import read_event
from corral.contract.views import Ended
from corral.core.errors import CorralError, JobError
from corral.core.job import QueueClass, State
from corral.sdk import results
from corral.sdk.handles import value
from corral.sdk.submit import outgoing, own_code, packages, submission
from corral.sdk.transport.connection import Connection

OUTSTANDING = 10_000
"""Jobs submitted and not yet handed to the caller."""
PER_MESSAGE = 500
PER_SUBMISSION, AT_ONCE = 500, 3
"""Jobs in one request, which the controller takes in one go, and requests on their way together."""
_LINGER_S = 0.05
"""A slow source is not waited for until a message is full."""


class WantedItems(NamedTuple):
    """The driver answers with up to this many items; fewer is fine, none means the end."""

    most: int


Step = WantedItems | list[Any]


def take(items: Iterator[Any], most: int) -> list[Any]:
    """Up to `most` items, but not more than a moment's worth of a slow source."""
    taken: list[Any] = []
    until = time.monotonic() + _LINGER_S
    for item in items:
        taken.append(item)
        if len(taken) == most or time.monotonic() >= until:
            break
    return taken


async def take_coming(items: AsyncIterator[Any], most: int) -> list[Any]:
    taken: list[Any] = []
    until = time.monotonic() + _LINGER_S
    async for item in items:
        taken.append(item)
        if len(taken) == most or time.monotonic() >= until:
            break
    return taken


class MapCall:
    """One call of `map`: the jobs of one batch, from the first item to the last result."""

    def __init__(
        self,
        connection: Connection,
        function: Callable[..., Any],
        options: Mapping[str, Any],
        *,
        spread: bool,
        ordered: bool = True,
        return_exceptions: bool = False,
        outstanding: int = OUTSTANDING,
    ) -> None:
        self._connection = connection
        self._correlation_id = submission.correlation_id(options)
        name = outgoing.name_of(function)
        template = submission.build(options, queue_class=QueueClass.BATCH, name=name)
        self._template = template
        self._along = own_code.along_of(options)
        self._function = packages.pickle_function(function, self._along)
        self._brought: frozenset[str] | None = None
        """What goes along so far: an item may name more."""
        self._spread = spread
        """Each item is a tuple of arguments, not the one argument."""
        self._ordered = ordered
        self._return_exceptions = return_exceptions
        self._outstanding = max(1, outstanding)
        self._batch_is_ours = not template.batch
        self._key = template.idempotency_key or uuid.uuid4().hex
        # The same key is the same map: its jobs are found again in the same batch.
        self._batch = template.batch or f"map-{self._key}"
        self._submitted = 0
        self._yielded = 0
        self._index: dict[str, int] = {}
        """Job ids of what is in flight, and where in the order their items stood."""
        self._early: dict[str, pb.JobEvent] = {}
        """Ends that overtook the answer to their submission."""
        self._ready: dict[int, pb.JobEvent] = {}

    async def steps(self) -> AsyncGenerator[Step, list[Any] | None]:
        """Asks for items while there is room, yields results as they come, ends after the last."""
        await self._prepare()
        ends: asyncio.Queue[list[pb.JobEvent] | CorralError] = asyncio.Queue(maxsize=8)
        reader: asyncio.Task[None] | None = None
        sending: asyncio.Task[None] | None = None
        exhausted = False

        async def until_sent() -> None:
            nonlocal reader, sending
            if sending:
                await sending
                sending = None
                reader = reader or asyncio.create_task(self._read(ends))

        try:
            while not exhausted or sending or self._submitted > self._yielded:
                room = self._outstanding - (self._submitted - self._yielded)
                if not exhausted and room > 0:
                    items = yield WantedItems(min(PER_MESSAGE, room))
                    exhausted = not items
                    first = self._submitted
                    calls = self._encode(items or [])
                    await until_sent()  # one message on its way while the next is put together
                    if calls:
                        sending = asyncio.create_task(self._send(calls, first))
                elif sending:
                    await until_sent()
                elif not self._ready_to_yield():
                    self._settle(await ends.get())
                while not ends.empty():
                    self._settle(ends.get_nowait())
                while values := await self._values():
                    yield values
        finally:
            if reader:
                reader.cancel()
            if sending:
                # What is on its way is known only by its answer, and could not be cancelled.
                with contextlib.suppress(CorralError, TimeoutError):
                    await asyncio.wait_for(sending, timeout=5)
            await self._abandon()

    async def _prepare(self) -> None:
        call = self._template.function
        if submission.rides_along(self._function, often=True):
            sha256 = hashlib.sha256(self._function).hexdigest()
            size = len(self._function)
            call.function.CopyFrom(pb.BlobRef(sha256=sha256, size=size, data=self._function))
        else:
            call.function.CopyFrom(await self._connection.put(self._function))
        self._template.batch = self._batch

    def _encode(self, items: Iterable[Any]) -> list[pb.Call]:
        """Each item as a call, with the key that makes sending it again the same job."""
        calls = []
        for number, item in enumerate(items, self._submitted):
            args = item if self._spread else (item,)
            data = packages.pickle_arguments(args, {}, self._along)
            arguments = pb.BlobRef(size=len(data), data=data)
            calls.append(pb.Call(arguments=arguments, idempotency_key=f"{self._key}-{number}"))
        self._submitted += len(calls)
        return calls

    async def _send(self, calls: list[pb.Call], first: int) -> None:
        """`first` is where in the order the first of them stands."""
        async for job_ids in self._accepted(calls):
            for job_id in job_ids:
                early = self._early.pop(job_id, None)
                if early is None:
                    self._index[job_id] = first
                else:
                    self._ready[first] = early
                first += 1

    async def _read(self, ends: asyncio.Queue[list[pb.JobEvent] | CorralError]) -> None:
        """The queue is short, so a caller who stops asking stops the stream as well."""
        try:
            async with contextlib.aclosing(self._connection.watch(batch=self._batch)) as lists:
                async for events in lists:
                    await ends.put(events)
        except CorralError as error:
            await ends.put(error)

    def _settle(self, found: list[pb.JobEvent] | CorralError) -> None:
        if isinstance(found, CorralError):
            raise found
        for event in found:
            if not event.HasField("ended"):
                continue
            index = self._index.pop(event.job_id, None)
            if index is None:
                self._early[event.job_id] = event
            else:
                self._ready[index] = event

    def _ready_to_yield(self) -> bool:
        return self._yielded in self._ready if self._ordered else bool(self._ready)

    async def _values(self) -> list[Any]:
        """All results whose turn it is; a failure only after the values before it."""
        values: list[Any] = []
        while self._ready_to_yield():
            index = self._yielded if self._ordered else next(iter(self._ready))
            event = self._ready[index]
            if event.ended.state != State.SUCCEEDED and values and not self._return_exceptions:
                break
            del self._ready[index]
            self._yielded += 1
            values.append(await self._value(event))
        return values

    async def _value(self, event: pb.JobEvent) -> Any:
        if event.ended.state == State.SUCCEEDED and event.ended.result.data:
            data = event.ended.result.data  # of most, and there may be millions
            return results.value_of(data, job_id=event.job_id)
        ended = read_event(event)
        assert isinstance(ended, Ended)
        try:
            return await value(self._connection, ended)
        except JobError as error:
            if self._return_exceptions:
                return error.with_traceback(None)  # which would keep all of this alive
            raise

    async def _abandon(self) -> None:
        """Nobody will ask for these any more: the caller left early or one of them failed."""
        call = self._connection.call
        if not self._index:
            return
        with contextlib.suppress(CorralError):
            if self._batch_is_ours:
                await call("CancelBatch", pb.BatchRequest(batch=self._batch), again=False)
                return
            for job_id in list(self._index):
                await call("CancelJob", pb.JobRequest(job_id=job_id), again=False)

    async def submitted(self, items: Iterator[Any]) -> AsyncIterator[str]:
        """The ids of the jobs. A few messages are under way at once, so that the controller reads
        one while it writes another."""
        await self._prepare()
        coming: deque[asyncio.Task[list[str]]] = deque()
        while (chunk := list(islice(items, PER_SUBMISSION))) or coming:
            if chunk:
                coming.append(asyncio.create_task(self._job_ids(self._encode(chunk))))
                await asyncio.sleep(0)  # it is sent before the next is encoded
            if len(coming) > AT_ONCE or not chunk:
                for job_id in await coming.popleft():
                    yield job_id

    async def _bring(self) -> None:
        """The modules that the function and the items so far name, once."""
        along = self._along
        if along is None or self._brought == along.met:
            return
        met = along.met
        if (code := along.packed()) is not None:
            await self._connection.bring(code)
            self._template.function.code.sha256 = code.sha256
        self._brought = met

    async def _job_ids(self, calls: list[pb.Call]) -> list[str]:
        return [job_id async for job_ids in self._accepted(calls) for job_id in job_ids]

    async def _accepted(self, calls: list[pb.Call]) -> AsyncIterator[Iterable[str]]:
        """Sends calls, in several messages where one would be too large; yields the jobs' ids."""
        await self._bring()
        for part in _by_size(calls):
            for call in part:
                data = call.arguments.data
                if not submission.rides_along(data):
                    call.arguments.CopyFrom(await self._connection.put(data))
            request = pb.SubmitJobsRequest(like=self._template, calls=part)
            reply = await self._connection.submit(request, self._correlation_id)
            yield reply.job_ids


def _by_size(calls: list[pb.Call]) -> Iterator[list[pb.Call]]:
    part: list[pb.Call] = []
    size = 0
    for call in calls:
        # What does not ride along is stored ahead and leaves only its digest.
        data = call.arguments.data
        own = len(data) if submission.rides_along(data) else 0
        if part and size + own > 16 * 1024 * 1024:
            yield part
            part, size = [], 0
        part.append(call)
        size += own
    if part:
        yield part
