"""Controllers and workers of different versions: what gets along, and what is told so."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed

import corral
from corral.cli.workers.join import enrol
from corral.joining import trust
from corral.joining.invitation import Invitation, parse
from corral.protocol import messages as wire
from corral.runtime.pipeline.blocking_websocket import BlockingWebSocket
from tests.e2e.test_joining import YAML, connected
from tests.eventually import PATIENCE_S, eventually
from tests.live import LiveController
from tests.protocol.version_1 import OldWorker


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    home = tmp_path_factory.mktemp("versions")
    (home / "corral.yaml").write_text(f"{YAML}worker: {{enabled: false}}\n")
    with LiveController(home) as made:
        yield made


@pytest.fixture
def client(live: LiveController) -> Iterator[corral.Client]:
    with corral.Client(home=live.home) as made:
        yield made


def enrolled(client: corral.Client) -> tuple[Invitation, str, dict[str, str]]:
    told = parse(client.admin.invite_worker())
    pem = trust.fetched(told.host, told.port, told.sha256)
    return told, pem, enrol(told.url, told.token, "old", pem)


def test_a_worker_of_the_first_version_works(client: corral.Client) -> None:
    told, pem, card = enrolled(client)
    url = f"wss://{told.host}:{told.port}/worker"
    old = OldWorker(url, card["worker_id"], card["credential"], trust.context(pem))
    welcome = old.register()
    assert welcome["grace_s"] == 2
    eventually(lambda: connected(client, card["name"]), f"{card['name']} is connected")
    handle = client.submit(abs, (-1,), worker=card["name"])
    assert old.works({"answer": 42}) == handle.id
    assert handle.result(PATIENCE_S) == {"answer": 42}
    assert "an old worker" in "".join(handle.logs())
    old.leaves()
    client.admin.revoke_worker(card["name"])


@pytest.mark.parametrize(
    ("version", "remedy"), [("0", "corral invite"), ("2", "Update the controller"), ("x" * 99, "")]
)
def test_a_version_that_we_do_not_speak_is_told_what_to_do(
    client: corral.Client, version: str, remedy: str
) -> None:
    told, pem, card = enrolled(client)
    register = {"type": "WorkerGreeting", "runner_protocol": version, "nothing": ["we", "know"]}
    dialled = BlockingWebSocket(
        f"wss://{told.host}:{told.port}/worker",
        additional_headers={"Authorization": f"Bearer {card['credential']}"},
        ssl=trust.context(pem),
        open_timeout=PATIENCE_S,
    )
    with contextlib.closing(dialled) as socket:
        socket.send(json.dumps([register]).encode())
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(PATIENCE_S)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == wire.CLOSE_INCOMPATIBLE == 4426
    assert f"speaks protocol '{version[:16]}'" in closed.value.rcvd.reason
    assert remedy in closed.value.rcvd.reason


def test_a_worker_that_says_more_than_we_know_works(client: corral.Client) -> None:
    """Newer than its controller, in the same version: what it adds is passed over."""
    from tests.protocol import version_1

    told, pem, card = enrolled(client)
    url = f"wss://{told.host}:{told.port}/worker"
    newer = OldWorker(url, card["worker_id"], card["credential"], trust.context(pem))
    more = version_1.REGISTER.replace('"cpus":2.0', '"cpus":2.0,"moons":[1]')
    newer._say(
        more.replace('"name":"old"', '"name":"old","mood":{"good":true}') % card["worker_id"]
    )
    newer.hears("WorkerWelcome")
    handle = client.submit(abs, (-1,), worker=card["name"])
    newer.works(7)
    assert handle.result(PATIENCE_S) == 7
    newer.leaves()


def test_the_table() -> None:
    assert wire.VERSION in wire.COMPATIBLE
    assert not wire.refusal(wire.VERSION)
    for version in ("", "0", "3", "one"):
        assert len(wire.refusal(version)) <= 120  # what fits into a close
