"""Whoever has no token costs a controller next to nothing, by whichever door: a job above all,
which runs as the owner of the home and finds every socket in /proc/net/unix."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import pytest

import corral
from corral.contract.service import CHANNEL_OPTIONS, SERVICE
from corral.protocol import parcels
from tests.live import LiveController

MANY = 12
LARGE = 60_000_000
MAX_GROWTH = 150_000_000
"""Of the controller's memory; what is sent to it here is 700 MB."""

FEW = "ulimit -Sn 256; ulimit -Hn 512"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    with LiveController(tmp_path_factory.mktemp("own")) as controller:
        yield controller


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    """A controller that may have 512 descriptors."""
    prefix = ("sh", "-c", f'{FEW}; exec "$0" "$@"')
    with LiveController(tmp_path_factory.mktemp("few"), prefix=prefix) as controller:
        yield controller
    assert "Traceback" not in controller.log
    assert "Too many open files" not in controller.log


def peak(controller: LiveController) -> int:
    """The most memory that the controller ever had, in bytes."""
    assert controller.process is not None
    told = Path(f"/proc/{controller.process.pid}/status").read_text()
    return int(told.split("VmHWM:")[1].split()[0]) * 1024


def works(controller: LiveController) -> bool:
    with urllib.request.urlopen(f"{controller.url}/health", timeout=20) as answer:
        assert answer.status == 200
    with corral.Client(home=controller.home) as client:
        return bool(client.run(abs, (-7,), output=None) == 7)


def at_once(call: Callable[[], object]) -> None:
    threads = [threading.Thread(target=call) for _ in range(MANY)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def connected(controller: LiveController) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(str(controller.home / parcels.SOCKET))  # with a timeout it would not wait its turn
    line.settimeout(20)
    return line


# --- the local door ---


def _knock(path: str, count: int) -> tuple[int, int]:
    """A job that connects as often as it can: how often, and how many were hung up on."""
    import select
    import socket

    lines = []
    for _ in range(count):
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.connect(path)
        lines.append(line)
    ended = 0
    for line in lines:
        if select.select([line], [], [], 20)[0]:
            ended += 1
    return len(lines), ended


def test_a_job_is_hung_up_on_before_it_said_a_word(few: LiveController) -> None:
    with corral.Client(home=few.home) as client:
        reached, ended = client.run(_knock, (str(few.home / parcels.SOCKET), 400), output=None)
    assert ended == reached
    assert works(few)


@pytest.mark.parametrize("token", [b"", b"wrong"])
def test_silence_at_the_local_door_keeps_nobody_out(few: LiveController, token: bytes) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(700):
            line = held.enter_context(connected(few))
            with contextlib.suppress(OSError):
                line.sendall(parcels.HEAD.pack(40, 0) + token)  # and never the rest of it
        with corral.Client(home=few.home) as client:
            assert client.run(abs, (-1,), output=None) == 1
            assert client._direct._sockets is not None, "the door still serves who has a token"
        assert works(few)


@pytest.mark.parametrize("token", [None, b"wrong"])
def test_large_parcels_of_strangers_are_not_kept(own: LiveController, token: bytes | None) -> None:
    before = peak(own)

    def send() -> None:
        with connected(own) as line, contextlib.suppress(OSError):
            if token is not None:
                line.sendall(parcels.parcel(0, token))
            line.sendall(parcels.HEAD.pack(LARGE, 1))
            for _ in range(LARGE // 1_000_000 - 1):
                line.sendall(bytes(1_000_000))
            line.recv(1)

    at_once(send)
    assert peak(own) - before < MAX_GROWTH
    assert works(own)


def test_who_does_not_introduce_itself_is_hung_up_on(tmp_path: Path) -> None:
    soon = {"header_s": 0.5}
    with LiveController(tmp_path / "h", limits=soon) as controller, connected(controller) as line:
        assert line.recv(1) == b""


def test_large_parcels_of_a_client_are_bounded_together(own: LiveController) -> None:
    """Half of a call from each of many: their sum has a limit, and others are served meanwhile."""
    before = peak(own)
    lines = [connected(own) for _ in range(MANY)]
    try:
        for line in lines:
            with contextlib.suppress(OSError):
                line.sendall(parcels.parcel(0, own.token.encode()))
                line.sendall(parcels.HEAD.pack(LARGE, 1))
                for _ in range(LARGE // 1_000_000 - 1):
                    line.sendall(bytes(1_000_000))
        assert works(own)
    finally:
        for line in lines:
            line.close()
    assert peak(own) - before < 400_000_000


# --- gRPC and HTTP ---


@pytest.mark.parametrize(
    ("method", "token"),
    [("SubmitJobs", ""), ("SubmitJobs", "wrong"), ("PutPackage", ""), ("Nonsense", "")],
)
def test_large_messages_of_strangers_are_not_read(
    own: LiveController, method: str, token: str
) -> None:
    before = peak(own)
    large = bytes(LARGE)
    said = []
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    with grpc.insecure_channel(own.address, options=CHANNEL_OPTIONS) as channel:
        calling = channel.unary_unary(f"/{SERVICE}/{method}", None, None)

        def call() -> None:
            try:
                calling(large, metadata=metadata, timeout=60)
            except grpc.RpcError as error:
                said.append(error.code())

        at_once(call)
    wanted = "UNIMPLEMENTED" if method == "Nonsense" else "UNAUTHENTICATED"
    assert said == [grpc.StatusCode[wanted]] * MANY
    assert peak(own) - before < MAX_GROWTH
    assert works(own)


@pytest.mark.parametrize(
    "route", ["POST /jobs", "PUT /assets", "POST /enrol", "POST /join-requests", "POST /nowhere"]
)
def test_large_bodies_of_strangers_are_not_kept(own: LiveController, route: str) -> None:
    before = peak(own)
    place = urlsplit(own.url)

    def send() -> None:
        address = (str(place.hostname), int(place.port or 0))
        with socket.create_connection(address, timeout=20) as line, contextlib.suppress(OSError):
            head = f"{route} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {LARGE}\r\n\r\n"
            line.sendall(head.encode())
            for _ in range(LARGE // 1_000_000):
                line.sendall(bytes(1_000_000))

    at_once(send)
    assert peak(own) - before < MAX_GROWTH
    assert works(own)
