"""SIGSTOP of the controller for longer than the grace, then SIGCONT: whoever was there before still
is, and every job goes on as the same attempt."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import corral
from corral.core.events import AttemptPlaced, JobRequeued, JobSucceeded
from tests.crash.books import stories
from tests.crash.test_kills import gated
from tests.eventually import eventually
from tests.live import LiveController

pytestmark = [pytest.mark.crash, pytest.mark.long]

GRACE_S = 1.0


class Wire:
    """Between an agent and its controller: it can be cut, and then nobody gets through."""

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.is_cut, self.refused = False, 0
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                if self.is_cut:
                    self.refused += 1
                    near.close()
                    continue
                far = socket.create_connection(self._to)
                self._ends += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=_carry, args=(one, other), daemon=True).start()

    def cut(self) -> None:
        self.is_cut = True
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        for end in (*self._ends, self._listening):
            end.close()


def _carry(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)


def _agent(home: Path) -> psutil.Process | None:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if {"corral.agent.main", str(home)} <= set(process.cmdline()):
                return process
    return None


@pytest.fixture
def yard(tmp_path: Path) -> Path:
    (tmp_path / "yard").mkdir()
    return tmp_path / "yard"


@pytest.fixture
def controller(tmp_path: Path, yard: Path) -> Iterator[LiveController]:
    environ = {
        "CORRAL_WORKER_WRITE_PATHS": f"[{yard}]",
        "CORRAL_BACKOFF_S": "0",
        "CORRAL_GRACE_S": str(GRACE_S),
    }
    with LiveController(tmp_path / "home", environ=environ) as started:
        yield started


def _through(controller: LiveController, wire: Wire) -> None:
    """The agent is killed, and the one that follows finds its controller behind the wire."""
    card = controller.home / "worker" / "agent.json"
    told = json.loads(card.read_text("utf-8"))
    card.write_text(json.dumps({**told, "url": f"http://127.0.0.1:{wire.port}"}), "utf-8")
    first = eventually(lambda: _agent(controller.home), "an agent")
    first.kill()
    eventually(lambda: wire._ends, "an agent on this wire")


def test_stopped_for_longer_than_the_grace(controller: LiveController, yard: Path) -> None:
    assert controller.process is not None
    wire = Wire(int(controller.url.rpartition(":")[2]))
    try:
        _through(controller, wire)
        with corral.Client(controller.address, controller.token) as client:
            job = client.submit(gated, (str(yard), "a"))
            eventually((yard / "a.starts").exists, "the job has begun")
            agent = eventually(lambda: _agent(controller.home), "an agent")
            os.kill(controller.process.pid, signal.SIGSTOP)
            try:
                wire.cut()
                before = wire.refused
                time.sleep(4 * GRACE_S)  # what is waited for here is time itself
                assert wire.refused > before, "it keeps asking"
                assert agent.is_running(), "a controller that is stopped is not dead"
                wire.is_cut = False
            finally:
                os.kill(controller.process.pid, signal.SIGCONT)
            (yard / "a.gate").touch()
            assert job.result(timeout=30) == "a is done"
            assert len((yard / "a.starts").read_text("utf-8").splitlines()) == 1, "it ran once"
    finally:
        wire.close()
    controller.stop()
    facts = [fact for _, fact in stories(controller.home)[job.id]]
    assert isinstance(facts[-1], JobSucceeded)
    assert sum(isinstance(fact, AttemptPlaced) for fact in facts) == 1
    assert not any(isinstance(fact, JobRequeued) for fact in facts)
