"""Where an image server should be may be anything: it costs neither memory nor a job."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, cast

import httpx
import msgspec
import pytest
from PIL import Image

from corral.agent.environments.builder import own_packages
from corral.core.images.pipeline import Record
from corral.runtime.files.transfer import Transfer
from corral.runtime.pipeline import bounded, checkpoints, images
from corral.runtime.pipeline.bounded import Bounded, TooMuch
from corral.runtime.pipeline.run import own_seconds
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


def test_an_answer_does_not_trickle_for_ever(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    url = serve(b"x" * 100_000)
    monkeypatch.setattr(bounded, "SMALL_S", -1.0)
    with httpx.Client(transport=Bounded()) as client:
        with pytest.raises(httpx.ReadTimeout, match="did not end"):
            client.get(url)
        assert len(client.get(url, extensions=dict(bounded.IMAGES)).content) == 100_000


def test_a_packed_answer_stays_packed(serve: Serve) -> None:
    packed = gzip.compress(b" " * 50_000_000)
    with httpx.Client(transport=Bounded()) as client:
        assert client.get(serve(packed, "gzip")).content == packed


class Poisoned:
    """A checkpoint that no Corral wrote."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def checkpoint(self, sha256: str, into: IO[bytes]) -> None:
        into.write(self._data)


def test_a_checkpoint_beyond_all_measure_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(count: int) -> int:
        png = images.to_png(Image.new("RGB", (8, 8)))
        data = msgspec.msgpack.encode(checkpoints.Done("d", pngs=[png] * count))
        return len(checkpoints.load("s", "d", lambda: cast(Transfer, Poisoned(data)))[1])

    assert (found(2), found(513)) == (2, 0)
    monkeypatch.setattr(checkpoints, "MOST_BYTES", 100)
    assert found(2) == 0


def test_a_server_that_is_none_is_the_workers_trouble(
    start_runner: StartRunner, serve: Serve
) -> None:
    runner = start_runner(packages=own_packages())
    record = Record(CASTLE.positive, model="m1")
    begin(runner, record, type="webui", url=serve(b"[]"))
    failure = runner.end()["failure"]
    assert (failure["code"], failure["type"]) == ("backend_mismatch", "webui")
    assert "answers as no such server does" in failure["message"]


@pytest.mark.parametrize(
    ("told", "kept"), [(1.5, 1.5), (1e308, 2.0), (float("inf"), 2.0), (float("nan"), 0.0), (-1, 0)]
)
def test_a_servers_clock_says_anything(told: float, kept: float) -> None:
    assert own_seconds(told, 2.0) == kept
