"""A worker that says whatever a test tells it to, at the door of a real controller."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from corral.core.worker import Capabilities
from corral.protocol import messages as wire
from tests.eventually import PATIENCE_S
from tests.live import LiveController

MUCH = Capabilities(cpus=64, memory_gb=64, workloads=("python",))


class Card:
    """An enrolled worker: its id and its credential."""

    def __init__(self, controller: LiveController, name: str) -> None:
        token = controller.enrolment
        request = urllib.request.Request(
            f"{controller.url}/enrol",
            data=json.dumps({"name": name}).encode(),
            headers={"Authorization": f"Bearer {token}"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            told = json.load(answer)
        self.id, self.name, self.credential = told["worker_id"], told["name"], told["credential"]

    def register(self, **fields: Any) -> wire.WorkerRegister:
        settled = {
            "worker_id": self.id,
            "software_version": "0",
            "runner_protocol": wire.VERSION,
            "capabilities": MUCH,
            **fields,
        }
        return wire.WorkerRegister(**settled)


class Door:
    """One connection. `closed` is how the controller ended it."""

    def __init__(self, controller: LiveController, credential: str) -> None:
        url = controller.url.replace("http", "ws", 1) + "/worker"
        headers = {"Authorization": f"Bearer {credential}"}
        self._open = ExitStack()
        opening = connect(url, additional_headers=headers, max_size=None, proxy=None)
        self._socket = self._open.enter_context(opening)

    def say(self, *messages: wire.Message) -> None:
        self.say_bytes(wire.encode(messages))

    def say_bytes(self, frame: bytes) -> None:
        with contextlib.suppress(ConnectionClosed):  # while it was said; `closed` tells why
            self._socket.send(frame)

    def say_text(self, frame: str) -> None:
        self._socket.send(frame)

    def say_pieces(self, beginning: bytes) -> None:
        """A message that begins so, of which no end comes."""
        with contextlib.suppress(ConnectionClosed):

            def pieces() -> Iterator[bytes]:
                yield beginning
                self._socket.recv(timeout=PATIENCE_S)

            self._socket.send(pieces())

    def hear(self, within_s: float = PATIENCE_S) -> list[wire.FromController]:
        frame = self._socket.recv(timeout=within_s)
        return wire.decode_from_controller(frame if isinstance(frame, bytes) else frame.encode())

    def joined(self, register: wire.WorkerRegister) -> wire.WorkerWelcome:
        self.say(register)
        (welcome,) = self.hear()
        assert isinstance(welcome, wire.WorkerWelcome)
        return welcome

    def dispatched(self, job: str) -> wire.JobDispatch:
        while True:
            for message in self.hear():
                if isinstance(message, wire.JobDispatch) and message.job == job:
                    return message

    def closed(self) -> tuple[int, str]:
        """The code and the sentence, whatever was said before."""
        try:
            while True:
                self._socket.recv(timeout=PATIENCE_S)
        except ConnectionClosed as closed:
            told = closed.rcvd
        assert told is not None, "it hung up without a word"
        return told.code, told.reason

    def __enter__(self) -> Door:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()
