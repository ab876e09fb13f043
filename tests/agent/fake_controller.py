"""A controller that is only its socket: it says what a test tells it to and keeps what it hears."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
from msgspec import Raw
from websockets.asyncio.server import Server, ServerConnection, serve

from corral.core.job import Blob, FunctionCall, Job, document_digest, encode_document
from corral.core.limits import InputLimits
from corral.protocol import messages as wire
from tests.eventually import PATIENCE_S

M = TypeVar("M", bound=wire.Message)
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
FRAME_BYTES = InputLimits().frame_bytes
"""Larger ones it hangs up on, as a real one does."""


class FakeController:
    """Everything it hears is kept; `expect` waits for one message, heard or to come."""

    def __init__(self) -> None:
        self.heard: list[wire.Message] = []
        self.sockets: list[ServerConnection] = []
        self.receives = True
        """Whether it confirms results."""
        self.acknowledges = False
        """Whether it says that it acknowledges output, as older ones do not."""
        self.takes_output = True
        """Whether it does."""
        self.slowness_s = 0.0
        """How long it dwells on each frame."""
        self.grace_s = 30.0
        self.url = "http://127.0.0.1:9"
        self._jobs = 0
        self._news = asyncio.Condition()
        self._server: Server | None = None
        self.port = 0

    async def listen(self) -> None:
        self._server = await serve(
            self._serve, "127.0.0.1", self.port, compression=None, max_size=FRAME_BYTES
        )
        self.port = next(iter(self._server.sockets)).getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def write_address(self, home: Path) -> None:
        (home / "worker").mkdir(parents=True, exist_ok=True)
        (home / "worker" / "agent.json").write_text(
            json.dumps(
                {
                    "url": f"ws://127.0.0.1:{self.port}/worker",
                    "credential": "a credential",
                    "worker_id": "w1",
                    "name": "here",
                }
            )
        )

    async def _serve(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        assert socket.request.headers["Authorization"] == "Bearer a credential"
        with contextlib.suppress(Exception):
            async for frame in socket:
                messages = wire.decode_from_worker(frame)
                for message in messages:
                    if isinstance(message, wire.WorkerRegister):
                        welcome = wire.WorkerWelcome(
                            "here", 0.2, self.grace_s, self.url, acknowledges=self.acknowledges
                        )
                        await socket.send(wire.encode([welcome]))
                        self.sockets.append(socket)
                    if self.receives and isinstance(
                        message, wire.JobCompleted | wire.JobFailed | wire.JobReturned
                    ):
                        received = wire.ResultReceived(message.job, message.attempt)
                        await socket.send(wire.encode([received]))
                async with self._news:
                    self.heard += messages
                    self._news.notify_all()
                if self.acknowledges and self.takes_output:
                    await self._take_output(socket, messages)
                await asyncio.sleep(self.slowness_s)

    async def _take_output(self, socket: ServerConnection, messages: list[wire.FromWorker]) -> None:
        told = [one for one in messages if isinstance(one, wire.JobOutput | wire.JobProgress)]
        upto = {(one.job, one.attempt): one.n for one in told}
        received = wire.OutputReceived(tuple((*key, n) for key, n in upto.items()))
        await socket.send(wire.encode([received]))

    async def send(self, *messages: wire.Message) -> None:
        await self.sockets[-1].send(wire.encode(messages))

    async def expect(
        self,
        kind: type[M],
        job: str = "",
        where: Callable[[M], bool] = lambda _: True,
        count: int = 1,
    ) -> M:
        def found() -> list[M]:
            return [
                message
                for message in self.heard
                if isinstance(message, kind)
                and (not job or getattr(message, "job", "") == job)
                and where(message)
            ]

        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(lambda: len(found()) >= count)
        return found()[count - 1]

    async def news(self, heard: int) -> None:
        """Until more was heard than that many messages."""
        async with self._news:
            await self._news.wait_for(lambda: len(self.heard) > heard)

    def job(self, function: Callable[..., Any], *args: Any, **fields: Any) -> wire.JobDispatch:
        """A dispatch that calls the function; fields are the document's or the dispatch's."""
        module = sys.modules[function.__module__] if function.__module__ else None
        if module is not None and module.__name__.startswith("tests."):
            cloudpickle.register_pickle_by_value(module)
        work = FunctionCall(
            Blob.of(cloudpickle.dumps(function)), Blob.of(cloudpickle.dumps((args, {})))
        )
        return self.dispatch(work, **fields)

    def dispatch(self, work: Any, **fields: Any) -> wire.JobDispatch:
        self._jobs += 1
        own = {"digest", "attempt", "above_vram_gb", "checkpoint"}
        named = {name: fields.pop(name) for name in own & fields.keys()}
        job = Job(work=work, **{"python": PYTHON, **fields})
        document = encode_document(job)
        settled: dict[str, Any] = {
            "job": f"job{self._jobs}",
            "attempt": 1,
            "document": Raw(document),
            "digest": document_digest(document),
            "token": "a token",
            "needs": job.needs,
            "duration_s": job.duration_s,
            "queue_class": job.queue_class,
            "priority": job.priority,
            **named,
        }
        return wire.JobDispatch(**settled)

    async def value(self, job: str) -> Any:
        """What the job returned."""
        completed = await self.completed(job)
        assert completed.result is not None
        assert completed.result.data is not None
        return cloudpickle.loads(completed.result.data)

    async def completed(self, job: str) -> wire.JobCompleted:
        ended = await self.ended(job)
        assert isinstance(ended, wire.JobCompleted), ended
        return ended

    async def failed(self, job: str) -> wire.JobFailed:
        ended = await self.ended(job)
        assert isinstance(ended, wire.JobFailed), ended
        return ended

    async def ended(self, job: str) -> wire.Message:
        ends = (wire.JobCompleted, wire.JobFailed)
        return await self.expect(wire.Message, job, lambda message: isinstance(message, ends))

    def output(self, job: str) -> str:
        return "".join(
            message.text
            for message in self.heard
            if isinstance(message, wire.JobOutput) and message.job == job
        )
