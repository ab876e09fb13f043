"""One laboratory per engine. A new engine adds a parameter here, and no test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import msgspec
import pytest
import uvicorn
from fastapi import FastAPI, Request, Response, WebSocket
from msgspec import Raw

from corral.api.workers.worker_socket import Frames, WorkerSocket
from corral.core.events import AttemptExited, EngineReport
from corral.core.job import (
    Blob,
    FunctionCall,
    Job,
    Needs,
    decode_document,
    document_digest,
    encode_document,
)
from corral.core.worker import Capabilities, Worker
from corral.engines.agents import AgentsEngine
from corral.engines.engine import Attempt, Engine, EngineContext
from corral.engines.local_agent import LocalAgent
from corral.engines.processes import ProcessesEngine
from corral.engines.simulated import SimulatedEngine
from corral.home import Home
from corral.protocol.attempt_messages import AttemptMessages
from corral.runtime.standalone.ticket import AttemptOrder, AttemptTicket
from corral.settings import Settings, WorkerSettings
from tests.eventually import PATIENCE_S, eventually_async

LONG_S = 600


class Lab:
    """An engine with one worker of two CPUs, its reports, and a lever to lose the worker."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.reports: list[EngineReport] = []
        self.patience_s = PATIENCE_S
        self.on_disk = asyncio.Event()
        """Cleared: ends that are read are not written down yet, and nothing else is asked for."""
        self.on_disk.set()
        self._news = asyncio.Condition()
        self._number = 0

    async def read(self) -> None:
        async for batch in self.engine.events():
            async with self._news:
                self.reports.extend(batch)
                self._news.notify_all()
            if any(isinstance(report, AttemptExited) for report in batch):
                await self.on_disk.wait()

    async def until(self, kind: type[EngineReport], count: int = 1) -> list[EngineReport]:
        async with asyncio.timeout(self.patience_s), self._news:
            await self._news.wait_for(lambda: len(self.seen(kind)) >= count)
        return self.seen(kind)

    def seen(self, kind: type[EngineReport]) -> list[EngineReport]:
        return [report for report in self.reports if isinstance(report, kind)]

    async def worker(self) -> Worker:
        return self.engine.workers()[0]

    async def attempt(
        self, *, long: bool = False, cpus: float = 1.0, after: Attempt | None = None
    ) -> Attempt:
        """Of a job of its own, or the next one `after` another."""
        self._number += 1
        work, given = (time.sleep, LONG_S) if long else (abs, -self._number)
        function = Blob.of(cloudpickle.dumps(work))
        arguments = Blob.of(cloudpickle.dumps(((given,), {})))
        document = encode_document(Job(work=FunctionCall(function=function, arguments=arguments)))
        return Attempt(
            job=f"job{self._number}" if after is None else after.job,
            attempt=1 if after is None else after.number + 1,
            worker=(await self.worker()).id,
            document=Raw(document),
            digest=document_digest(document),
            token="t",
            needs=Needs(cpus=cpus),
        )

    def lose_worker(self) -> None:
        raise NotImplementedError


class SimulatedLab(Lab):
    engine: SimulatedEngine

    def lose_worker(self) -> None:
        self.engine.lose("w")


class AgentsLab(Lab):
    engine: AgentsEngine
    pid: int

    def lose_worker(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def simulated_lab(home: Path) -> AsyncIterator[Lab]:
    can = Capabilities(cpus=2.0, memory_gb=4.0, workloads=("python",))
    worker = Worker(id="w", name="w", engine="simulated", capabilities=can)

    engine = SimulatedEngine([worker], lambda attempt: LONG_S if is_long(attempt) else 0.0)
    engine.open()
    yield SimulatedLab(engine)


def is_long(attempt: Attempt) -> bool:
    work = decode_document(attempt.document).work
    assert isinstance(work, FunctionCall)
    return b"sleep" in (work.function.data or b"")


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield


def agents(
    known: Sequence[Worker] = (),
    *,
    grace_s: float = 60.0,
    output_limit: int = 1000,
    stop_grace_s: float = 0.0,
    **given: Any,
) -> AgentsEngine:
    """The engine without a controller."""
    settings = Settings(grace_s=grace_s, output_limit=output_limit, cancel_grace_s=stop_grace_s)
    return AgentsEngine(EngineContext(settings, Home(Path()), known=known, **given))


def roster(is_worker: Callable[[str, str], bool] = lambda worker, credential: True) -> Any:
    """One that knows everybody."""

    def yes(_: str) -> bool:
        return True

    return SimpleNamespace(is_worker=is_worker, knows=yes, recognises=yes)


@contextlib.asynccontextmanager
async def agents_lab(path: Path) -> AsyncIterator[Lab]:
    """The real thing: a real socket, a real agent process, real runners."""
    home = Home(path)
    home.take()
    (path / "corral.yaml").write_text("worker: {cpus: 2}\n")
    local = LocalAgent(home, "w")
    engine = agents(grace_s=0.5, output_limit=1 << 20, local_id=local.worker_id)
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    door = WorkerSocket(
        engine, roster(lambda _, shown: shown == local.credential), heartbeat_s=1.0, grace_s=5.0
    )
    app = FastAPI()

    @app.websocket("/worker")
    async def worker(websocket: WebSocket) -> None:
        await door.serve(websocket)

    server = _Server(uvicorn.Config(app, log_config=None, lifespan="off", ws=Frames))
    local.introduce(url)
    tasks = [asyncio.create_task(server.serve(sockets=[listening]))]
    once = asyncio.create_task(local._once(path))
    lab = AgentsLab(engine)
    try:
        await eventually_async(engine.workers, "a worker")
        assert local._process is not None
        lab.pid = local._process.pid
        yield lab
    finally:
        server.should_exit = True
        await local.end()
        await asyncio.gather(once, *tasks, return_exceptions=True)
        listening.close()
        home.release()


class ProcessesLab(Lab):
    """With as much of the attempts' door as one attempt after the other needs."""

    engine: ProcessesEngine

    def __init__(self, engine: ProcessesEngine) -> None:
        super().__init__(engine)
        self._given: dict[tuple[str, int], Attempt] = {}

    async def attempt(
        self, *, long: bool = False, cpus: float = 1.0, after: Attempt | None = None
    ) -> Attempt:
        made = await super().attempt(long=long, cpus=cpus, after=after)
        self._given[made.job, made.number] = made
        return made

    def placed_on(self, job: str, attempt: int) -> str:
        exits = (one for one in self.reports if isinstance(one, AttemptExited))
        given = self._given.get((job, attempt))
        is_over = (job, attempt) in {(one.job, one.attempt) for one in exits}
        return "" if given is None or is_over else given.worker

    async def order(self, job: str, attempt: int) -> Response:
        of = self._given[job, attempt]
        order = AttemptOrder(job, attempt, of.document, of.digest, of.token, of.needs, 3600.0)
        return Response(msgspec.json.encode(order))

    async def messages(self, job: str, attempt: int, request: Request) -> Response:
        worker = self.placed_on(job, attempt)
        if not worker:
            return Response(status_code=409)
        batch = msgspec.json.decode(await request.body(), type=AttemptMessages)
        answer = await self.engine.mailbox.post(job, attempt, worker, batch)
        return Response(msgspec.json.encode(answer))


@contextlib.asynccontextmanager
async def processes_lab(path: Path, late_s: float = 30.0) -> AsyncIterator[ProcessesLab]:
    """Real processes, which fetch and post over HTTP."""
    home = Home(path)
    home.take()
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    context = EngineContext(
        Settings(worker=WorkerSettings(cpus=2.0)),
        home,
        placed_on=lambda job, attempt: made.placed_on(job, attempt),
        local_id="w",
        ticket=lambda job, attempt: AttemptTicket(url, job, attempt, "t", folder=str(path / "s")),
    )
    made = ProcessesLab(ProcessesEngine(context, late_s=late_s))
    app = FastAPI()
    app.get("/attempts/{job}/{attempt}/order")(made.order)
    app.post("/attempts/{job}/{attempt}/messages")(made.messages)
    server = _Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    made.engine.open(())
    try:
        yield made
    finally:
        reading = asyncio.create_task(made.read())
        for job, attempt in await made.engine.running():
            await made.engine.stop(job, attempt, grace_s=0.0)
        await eventually_async(lambda: not any((path / "processes").iterdir()), "no process left")
        await made.engine.close()
        server.should_exit = True
        reading.cancel()
        await asyncio.gather(serving, reading, return_exceptions=True)
        listening.close()
        home.release()


LABS = {"simulated": simulated_lab, "agents": agents_lab, "processes": processes_lab}
LOSABLE = ["simulated", "agents"]
"""Engines with workers that are not the controller's own machine, which is lost with it."""


@pytest.fixture(params=LABS)
async def lab(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Lab]:
    async with LABS[request.param](tmp_path) as made:
        reading = asyncio.create_task(made.read())
        try:
            yield made
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
