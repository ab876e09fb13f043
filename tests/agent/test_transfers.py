"""What is too large for messages: jobs fetch and store it themselves, where the welcome says."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import cloudpickle
import pytest

from corral.core.job import Blob, FunctionCall
from corral.protocol import messages as wire
from tests.agent.conftest import BOTH_KINDS, StartAgent
from tests.agent.fake_controller import FakeController


@pytest.fixture(params=BOTH_KINDS)
def spawn(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


class Blobs(ThreadingHTTPServer):
    """Keeps what is stored by its path, and who came with which token."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Door)
        self.stored: dict[str, bytes] = {}
        self.tokens: set[str | None] = set()


class Door(BaseHTTPRequestHandler):
    server: Blobs

    def do_GET(self) -> None:
        self._answer(self.server.stored[self.path])

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.stored[self.path] = body
        said = {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body)}
        self._answer(json.dumps(said).encode())

    def _answer(self, body: bytes) -> None:
        self.server.tokens.add(self.headers["Authorization"])
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def blobs() -> Iterator[Blobs]:
    with Blobs() as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield server
        server.shutdown()
        serving.join()


def repeat(text: str) -> str:
    return text * 2


async def test_large_arguments_are_fetched_and_large_results_stored_with_the_attempts_token(
    controller: FakeController, start: StartAgent, blobs: Blobs
) -> None:
    controller.url = f"http://127.0.0.1:{blobs.server_port}"
    await start()
    arguments = cloudpickle.dumps((("x" * 50_000,), {}))
    small = controller.job(repeat)
    job = controller.dispatch(
        FunctionCall(Blob.of(_pickled(repeat)), Blob.of(arguments, inline=False))
    )
    blobs.stored[f"/attempts/{job.job}/1/packages/{Blob.of(arguments).sha256}"] = arguments
    await controller.send(job)
    completed = await controller.completed(job.job)
    assert completed.result is not None
    assert completed.result.data is None
    stored = blobs.stored[f"/attempts/{job.job}/1/result"]
    assert cloudpickle.loads(stored) == "x" * 100_000
    assert blobs.tokens == {f"Bearer {small.token}"}


def told_large() -> str:
    print(os.environ.get("CORRAL_PATIENCE_S"), flush=True)
    return "x" * 50_000


async def test_a_large_result_waits_for_a_controller_that_is_away(
    controller: FakeController, start: StartAgent
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    controller.url, controller.grace_s = f"http://127.0.0.1:{port}", 300.0
    await start()
    job = controller.job(told_large)
    await controller.send(job)
    await controller.expect(wire.JobOutput, job.job)
    assert controller.output(job.job) == "390.0\n", "the grace and something more"
    with Blobs(port) as late:
        serving = threading.Thread(target=late.serve_forever)
        serving.start()
        completed = await controller.completed(job.job)
        late.shutdown()
        serving.join()
        assert len(late.stored[f"/attempts/{job.job}/1/result"]) > 50_000
    assert completed.result is not None


def _pickled(function: object) -> bytes:
    pickled: bytes = cloudpickle.dumps(function)
    return pickled
