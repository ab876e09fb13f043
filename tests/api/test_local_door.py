"""The local door: the same checks as on gRPC, and no call that hangs or is lost."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import corral
from corral.contract import corral_pb2 as pb
from corral.core.errors import Forbidden, Unauthorized
from corral.protocol import parcels
from corral.sdk.aio import AsyncClient
from corral.sdk.transport.local_door import LocalSockets, socket_of
from tests.live import LiveController


def double(number: int) -> int:
    return 2 * number


def door_of(controller: LiveController) -> Path:
    path = socket_of(controller.home, controller.address)
    assert path is not None, f"no socket in {controller.home}"
    return path


def connected(controller: LiveController, token: str) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(10)
    line.connect(str(door_of(controller)))
    line.sendall(parcels.parcel(0, token.encode()))
    return line


def answer(line: socket.socket, payload: bytes) -> dict[str, object]:
    line.sendall(parcels.parcel(7, payload))
    frames = parcels.Parcels(1 << 20)
    while data := line.recv(1 << 16):
        for number, found in frames.take(data):
            assert number == 7
            assert found[:1] == parcels.BAD
            view: dict[str, object] = json.loads(found[1:])["error"]
            return view
    raise EOFError


@pytest.fixture
def client(controller: LiveController) -> Iterator[corral.Client]:
    with corral.Client(home=controller.home) as made:
        yield made


def submitted(controller: LiveController, token: str) -> None:
    line = LocalSockets(door_of(controller), token)
    try:
        line.submit(pb.SubmitJobsRequest().SerializeToString(), "")
    finally:
        line.close()


def test_a_program_on_this_machine_takes_it(
    controller: LiveController, client: corral.Client
) -> None:
    assert client.run(double, (21,)) == 42
    assert client._direct._sockets is not None
    assert client._direct._channel is None, "gRPC was not needed"
    assert client.submit(double, (2,)).result(timeout=20) == 4


def test_the_socket_is_its_owners_alone(controller: LiveController) -> None:
    assert stat.S_IMODE(os.stat(door_of(controller)).st_mode) == 0o600


def test_the_real_exception_comes_back(client: corral.Client) -> None:
    def fail() -> None:
        raise ZeroDivisionError("as planned")

    with pytest.raises(corral.JobFailed, match="as planned") as raised:
        client.run(fail)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_output_comes_before_the_value(client: corral.Client) -> None:
    def shout() -> str:
        print("loud")
        return "done"

    heard: list[str] = []
    assert client.run(shout, output=lambda _, text: heard.append(text)) == "done"
    assert "".join(heard) == "loud\n"


def test_without_a_good_token_nothing_passes(controller: LiveController) -> None:
    for token in ("", "wrong", "\N{SNOWMAN}"):
        with pytest.raises(ConnectionError):
            submitted(controller, token)
    with (
        corral.Client(controller.address, "wrong", home=controller.home) as client,
        pytest.raises(Unauthorized),  # by gRPC
    ):
        client.run(double, (1,))


def test_a_token_that_was_revoked_is_no_good_on_an_open_socket(
    controller: LiveController, client: corral.Client
) -> None:
    token, _ = client.admin.create_token("door-former", role="submit")
    with connected(controller, token) as line:
        assert answer(line, b"\0")["code"] == "invalid_job"
        client.admin.revoke_token("door-former")
        assert answer(line, b"\0")["code"] == "unauthorized"


def test_roles_hold_here_too(controller: LiveController, client: corral.Client) -> None:
    reader, _ = client.admin.create_token("door-reader", role="read")
    try:
        with pytest.raises(Forbidden):
            submitted(controller, reader)
    finally:
        client.admin.revoke_token("door-reader")
    with pytest.raises(ConnectionError):
        submitted(controller, reader)


@pytest.mark.parametrize("payload", [b"", b"\0\xff\xff\xff", b"\xff" * 40, b"\0"])
def test_nonsense_gets_a_clear_no(controller: LiveController, payload: bytes) -> None:
    with connected(controller, controller.token) as line:
        view = answer(line, payload)
        assert view["code"] in ("invalid_request", "invalid_job")


def test_an_endless_frame_is_hung_up_on(controller: LiveController) -> None:
    with connected(controller, controller.token) as line:
        line.sendall(parcels.HEAD.pack(0xFFFFFFFF, 1))
        assert line.recv(1) == b""


def test_a_frame_in_pieces_is_a_frame(controller: LiveController) -> None:
    with connected(controller, controller.token) as line:
        whole = parcels.parcel(7, parcels.call("piece-by-piece", b""))
        for byte in whole[:-1]:
            line.sendall(bytes([byte]))
        frames = parcels.Parcels(1 << 20)
        line.sendall(whole[-1:])
        ((number, found),) = frames.take(line.recv(1 << 16))
        assert number == 7
        assert json.loads(found[1:])["error"]["code"] == "invalid_job"


async def test_many_calls_share_one_socket(controller: LiveController) -> None:
    async with AsyncClient(home=controller.home) as client:
        found = await asyncio.gather(*(client.run(double, (n,)) for n in range(50)))
        assert found == [2 * n for n in range(50)]
        assert client._connection._local is not None


def test_whoever_cannot_take_it_takes_grpc(controller: LiveController) -> None:
    with corral.Client(controller.address, controller.token, home=Path("/nowhere")) as far:
        assert far.run(double, (4,)) == 8
        assert far._direct._sockets is None


def test_a_socket_that_a_killed_controller_left_is_no_hindrance(tmp_path: Path) -> None:
    controller = LiveController(tmp_path / "h")
    controller.start()
    controller.kill()
    assert (controller.home / parcels.SOCKET).exists()
    with controller, corral.Client(home=controller.home) as client:
        assert client.run(double, (5,)) == 10
        assert client._direct._sockets is not None
    assert not (controller.home / parcels.SOCKET).exists()
