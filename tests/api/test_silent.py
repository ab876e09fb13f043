"""Connections on which nobody says anything, more of them than the controller may have open."""

from __future__ import annotations

import contextlib
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import corral
from tests.live import LiveController

FEW = "ulimit -Sn 256; ulimit -Hn 512"
SILENT = 700


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    """A controller that may have 512 descriptors, and is given 256."""
    prefix = ("sh", "-c", f'{FEW}; exec "$0" "$@"')
    with LiveController(tmp_path_factory.mktemp("few"), prefix=prefix) as controller:
        yield controller
    assert "Traceback" not in controller.log
    assert "Too many open files" not in controller.log


@contextlib.contextmanager
def silence(address: str) -> Iterator[None]:
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as held:
        for _ in range(SILENT):
            held.enter_context(socket.create_connection((host, int(port)), timeout=10))
        yield


def healthy(controller: LiveController) -> bool:
    with urllib.request.urlopen(f"{controller.url}/health", timeout=10) as answer:
        return int(answer.status) == 200


def test_it_takes_the_descriptors_that_it_may_have(few: LiveController) -> None:
    assert few.process is not None
    told = Path(f"/proc/{few.process.pid}/limits").read_text().split("Max open files")[1]
    assert told.split()[0] == "512"


def test_silence_over_http_keeps_nobody_out(few: LiveController) -> None:
    with silence(few.url.removeprefix("http://")):
        assert healthy(few)
        with corral.Client(few.address, few.token) as client:
            assert client.run(abs, (-1,), output=None) == 1


def test_silence_over_grpc_disturbs_nobody_who_was_there(few: LiveController) -> None:
    with corral.Client(few.address, few.token) as client:
        assert client.run(abs, (-1,), output=None) == 1
        with silence(few.address):
            assert healthy(few)
            assert client.run(abs, (-2,), output=None) == 2


def test_silence_before_a_handshake_ends(tmp_path: Path) -> None:
    """Its descriptor is given back, also where TLS is spoken."""
    soon = {"header_s": 0.5}
    (tmp_path / "corral.yaml").write_text("discoverable: false\n")  # a test of discovery looks too
    with LiveController(tmp_path, "--host", "0.0.0.0", limits=soon) as controller:
        for address in (controller.url, controller.address):
            port = int(address.rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), timeout=30) as silent:
                while silent.recv(1000):  # gRPC begins the conversation
                    pass
