"""Where an image server should be may be anything: it costs neither memory nor a job."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from corral.agent.environments import own_packages
from corral.core.pipeline import Record
from corral.runtime.pipeline.bounded import Bounded, TooMuch
from tests.runtime.conftest import StartRunner
from tests.runtime.test_pipeline import CASTLE, begin

Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    running: list[ThreadingHTTPServer] = []

    def serve(body: bytes, encoding: str = "") -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                if encoding:
                    self.send_header("content-encoding", encoding)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        running.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=running[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{running[-1].server_port}"

    yield serve
    for one in running:
        one.shutdown()
        one.server_close()


def test_an_answer_is_read_up_to_its_limit(serve: Serve) -> None:
    url = serve(b"x" * 100_000)
    with httpx.Client(transport=Bounded()) as client:
        assert len(client.get(url).content) == 100_000
        with pytest.raises(TooMuch, match="more than 99,999 bytes"):
            client.get(url, extensions={"most_bytes": 99_999})


def test_a_packed_answer_stays_packed(serve: Serve) -> None:
    packed = gzip.compress(b" " * 50_000_000)
    with httpx.Client(transport=Bounded()) as client:
        assert client.get(serve(packed, "gzip")).content == packed


def test_a_server_that_is_none_is_the_workers_trouble(
    start_runner: StartRunner, serve: Serve
) -> None:
    runner = start_runner(packages=own_packages())
    record = Record(CASTLE.positive, model="m1")
    begin(runner, record, type="webui", url=serve(b"[]"))
    failure = runner.end()["failure"]
    assert (failure["code"], failure["type"]) == ("backend_mismatch", "webui")
    assert "answers as no such server does" in failure["message"]
