"""Workers whose sockets are reset in the middle of everything: only the worker is gone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import uvicorn
from msgspec import Raw
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as sync_connect

import corral
from corral.api.workers.worker_socket import MOST_UNREAD, Frames, WorkerSocket
from corral.core.job import Needs
from corral.core.worker import Capabilities
from corral.engines.agents import AgentsEngine
from corral.engines.engine import Attempt
from corral.protocol import messages as wire
from tests.api.worker_door import Card, Door
from tests.crash.books import stories
from tests.engines.conftest import agents, roster
from tests.live import LiveController

uvloop = pytest.importorskip("uvloop")
ROUNDS = 25
AT_ONCE = struct.pack("ii", 1, 0)
"""Closing then resets the connection, whatever was still to be read or said."""


class _Server(uvicorn.Server):
    def install_signal_handlers(self) -> None:
        """They are the tests' own."""


def test_work_for_a_worker_that_was_just_reset_raises_nothing() -> None:
    """Between the reset and the moment in which everybody knows of it work may be sent to it."""
    uvloop.run(_sent_while_reset())


async def _sent_while_reset() -> None:
    engine = agents()
    door = WorkerSocket(engine, roster(), heartbeat_s=5.0, grace_s=60.0)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await door.serve(WebSocket(scope, receive, send))

    listening = socket.create_server(("127.0.0.1", 0))
    server = _Server(uvicorn.Config(app, log_config=None, lifespan="off", ws=Frames))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    url = f"ws://127.0.0.1:{listening.getsockname()[1]}/worker"
    try:
        for number in range(20):
            await _one_reset(engine, url, number)
    finally:
        server.should_exit = True
        await serving
        listening.close()


async def _one_reset(engine: AgentsEngine, url: str, number: int) -> None:
    line = await connect(url, additional_headers={"Authorization": "Bearer x"}, proxy=None)
    can = Capabilities(cpus=1, memory_gb=1, workloads=("python",))
    await line.send(wire.encode([wire.WorkerRegister("w", "0", wire.VERSION, can)]))
    await line.recv()
    line.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
    line.transport.abort()
    sent = 0
    while any(worker.connected for worker in engine.workers()):
        sent += 1
        engine.start(Attempt(f"j{number}-{sent}", 1, Raw(b"{}"), "d", "t", Needs(), worker="w"))
        await asyncio.sleep(0)
    assert sent


def test_resets_while_jobs_are_placed_end_nothing(tmp_path: Path) -> None:
    environ = {"CORRAL_WORKER_ENABLED": "false", "CORRAL_GRACE_S": "0.05"}
    with LiveController(tmp_path, environ=environ) as controller:
        fickle, over = Card(controller, "fickle"), threading.Event()
        with Door(controller, fickle.credential) as first:
            first.joined(fickle.register())  # known from now on: jobs may wait for it
        accepted: list[str] = []
        submitting = [
            threading.Thread(target=_submit, args=(controller, over, accepted)) for _ in range(3)
        ]
        for one in submitting:
            one.start()
        try:
            for _ in range(ROUNDS):
                _join_and_reset(controller, fickle)
        finally:
            over.set()
            for one in submitting:
                one.join()
        assert controller.process is not None
        assert controller.process.poll() is None, controller.log[-3000:]
        assert controller.healthy()
        assert accepted
        assert "listener_failed" not in controller.log
    assert set(accepted) <= set(stories(controller.home))


def _submit(controller: LiveController, over: threading.Event, accepted: list[str]) -> None:
    with corral.Client(controller.address, controller.token) as client:
        while not over.is_set():
            accepted.append(client.submit(abs, (-1,)).id)


def _join_and_reset(controller: LiveController, fickle: Card) -> None:
    """It ends what it is sent, and hangs up as a killed process does while the next is sent."""
    with Door(controller, fickle.credential) as door:
        door.say(fickle.register())
        heard = [one for one in door.hear() if isinstance(one, wire.JobDispatch)]
        while not heard:
            heard = [one for one in door.hear() if isinstance(one, wire.JobDispatch)]
        plain = door._socket.socket
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        for one in heard:
            door.say(wire.JobCompleted(one.job, one.attempt, time.time(), 0.1, one.digest))
        plain.close()


def test_answers_that_nobody_reads_are_not_kept_for_ever(tmp_path: Path) -> None:
    """A worker that speaks and never listens: neither its answers stay, nor its sockets."""
    environ = {"CORRAL_WORKER_ENABLED": "false", "CORRAL_GRACE_S": "60"}
    with LiveController(tmp_path, environ=environ) as controller, contextlib.ExitStack() as doors:
        card = Card(controller, "deaf")
        nothing = [wire.JobReturned("nobody", 1, "") for _ in range(MOST_UNREAD * 3 // 4)]
        for _ in range(2):  # the second takes the place of the first, which hears nothing of it
            deaf = doors.enter_context(_deaf(controller, card))
            deaf.send(wire.encode(nothing))
        with contextlib.suppress(ConnectionClosed):
            while "worker_reads_nothing" not in controller.log:
                deaf.send(wire.encode(nothing))
        fickle = Card(controller, "fickle")
        for _ in range(2):  # the second takes nobody's place: the first has said goodbye
            door = doors.enter_context(Door(controller, fickle.credential))
            door.joined(fickle.register())
            door.say(wire.WorkerGoodbye())
        while _sockets(controller):
            door.say(wire.WorkerHeartbeat())


@contextlib.contextmanager
def _deaf(controller: LiveController, card: Card) -> Iterator[ClientConnection]:
    url = controller.url.replace("http", "ws", 1) + "/worker"
    headers = {"Authorization": f"Bearer {card.credential}"}
    opening = sync_connect(
        url, additional_headers=headers, max_queue=(1, 1), close_timeout=0.1, proxy=None
    )
    with opening as line:
        line.send(wire.encode([card.register()]))
        yield line


def _sockets(controller: LiveController) -> int:
    """Connections to the controller's HTTP door that are open there."""
    port = urlsplit(controller.url).port
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    own = [line.split() for line in lines]
    return sum(one[1].endswith(f":{port:04X}") and one[3] == "01" for one in own)
