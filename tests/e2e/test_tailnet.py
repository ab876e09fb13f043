"""`auth: tailscale`, with a stand-in for the program: it says that it is one, and answers as the
real one does (Node, UserProfile and CapMap of `tailscale whois --json`)."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import corral
from corral.joining.invitation import parse
from tests.e2e.test_joining import YAML, Machine, connected
from tests.eventually import eventually
from tests.live import LiveController

FAKE = """\
#!/bin/sh
# A fake of `tailscale`, for tests. It knows one tailnet: the file beside it.
echo "fake tailscale: $*" >&2
case "$1" in
    ip) echo 127.0.0.1 ;;
    whois) [ "$2" = --json ] && cat "$(dirname "$0")/$3.json" 2>/dev/null || {
        echo "peer not found" >&2
        exit 1
    } ;;
    version) echo "0.0.0-fake" ;;
esac
"""


def whois(**node: Any) -> dict[str, Any]:
    return {
        "Node": {
            "ID": 4242424242,
            "StableID": "nFAKE1CNTRL",
            "Name": "gaming.tail1234.ts.net.",
            "User": 1234,
            "Key": "nodekey:0000",
            "Addresses": ["100.101.102.103/32", "fd7a:115c:a1e0::1/128"],
            "AllowedIPs": ["100.101.102.103/32"],
            "Hostinfo": {"OS": "linux", "Hostname": "gaming"},
            "Created": "2026-01-01T00:00:00Z",
            "MachineAuthorized": True,
            "ComputedName": "gaming",
            **node,
        },
        "UserProfile": {"ID": 1234, "LoginName": "ada@example.com", "DisplayName": "Ada"},
        "CapMap": None,
    }


class Tailnet:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tailscale").write_text(FAKE)
        (folder / "tailscale").chmod(0o755)

    def knows(self, found: dict[str, Any] | None, address: str = "127.0.0.1") -> None:
        path = self.folder / f"{address}.json"
        path.unlink(missing_ok=True)
        if found is not None:
            path.write_text(json.dumps(found, indent=2))


@pytest.fixture(scope="module")
def tailnet(tmp_path_factory: pytest.TempPathFactory) -> Tailnet:
    return Tailnet(tmp_path_factory.mktemp("bin"))


@pytest.fixture(scope="module")
def live(tailnet: Tailnet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    home = tmp_path_factory.mktemp("tailnet")
    allow = 'auth: tailscale\ntailscale_allow: [Ada@example.com, "tag:gpu"]\n'
    (home / "corral.yaml").write_text(f"{YAML}{allow}worker: {{enabled: false}}\n")
    path = f"{tailnet.folder}:{os.environ['PATH']}"
    with LiveController(home, environ={"PATH": path}) as made:
        yield made


@pytest.fixture
def client(live: LiveController) -> Iterator[corral.Client]:
    with corral.Client(home=live.home) as made:
        yield made


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "machine")
    yield made
    made.stop()


def test_a_machine_of_the_tailnet_needs_no_token(
    client: corral.Client, tailnet: Tailnet, machine: Machine, tmp_path: Path
) -> None:
    told = client.admin.invite_worker()
    assert parse(told).token == "tailscale"  # nothing secret
    tailnet.knows(whois())
    machine.join(told, "--name", "gaming")
    eventually(lambda: connected(client, "gaming"), "gaming is connected")
    assert client.run(abs, (-9,), worker="gaming", output=None) == 9

    client.admin.revoke_worker("gaming")
    assert machine.ended() == 77
    again = machine.run("worker", "join", told)
    assert again.returncode == 1
    assert "was revoked" in again.stderr
    tailnet.knows(whois(StableID="nFAKE2CNTRL", Name="other.tail1234.ts.net."))
    machine.join(told, "--name", "other")
    eventually(lambda: connected(client, "other"), "other is connected")
    client.admin.revoke_worker("other")
    assert machine.ended() == 77


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "does not know the machine"),
        ({"Node": {"ID": 1}, "UserProfile": {}}, "does not know the machine"),
        (whois(StableID="n3", Hostinfo={"ShareeNode": True}), "only shared"),
        ({**whois(StableID="n4"), "UserProfile": {"LoginName": "eve@example.com"}}, "none of"),
    ],
)
def test_who_is_not_of_it_is_refused(
    client: corral.Client,
    tailnet: Tailnet,
    machine: Machine,
    found: dict[str, Any] | None,
    reason: str,
) -> None:
    tailnet.knows(found)
    refused = machine.run("worker", "join", client.admin.invite_worker())
    assert refused.returncode == 1
    assert reason in refused.stderr


def test_a_tag_is_as_good_as_a_login(
    client: corral.Client, tailnet: Tailnet, machine: Machine
) -> None:
    tagged = whois(StableID="n5", Tags=["tag:gpu"])
    tagged["UserProfile"]["LoginName"] = "tagged-devices"
    tailnet.knows(tagged)
    machine.join(client.admin.invite_worker(), "--name", "tagged")
    eventually(lambda: connected(client, "tagged"), "tagged is connected")
    client.admin.revoke_worker("tagged")


def test_an_address_cannot_be_claimed(
    live: LiveController, client: corral.Client, tailnet: Tailnet
) -> None:
    """Who says of itself to come from elsewhere comes from where it comes from."""
    import ssl

    tailnet.knows(whois(StableID="n6"), "100.101.102.103")
    tailnet.knows(None)
    told = parse(client.admin.invite_worker())
    raw = socket.create_connection((told.host, told.port), 10)
    context = ssl._create_unverified_context()
    with context.wrap_socket(raw, server_hostname="corral") as asked:
        asked.sendall(
            f"POST /enrol HTTP/1.1\r\nHost: {told.host}\r\nAuthorization: Bearer tailscale\r\n"
            "X-Forwarded-For: 100.101.102.103\r\nContent-Length: 2\r\n\r\n{}".encode()
        )
        assert b" 401 " in asked.recv(4096).split(b"\r\n")[0]


def test_a_token_is_still_good(client: corral.Client, tailnet: Tailnet, machine: Machine) -> None:
    tailnet.knows(None)
    told = client.admin.invite_worker(renew=True)
    assert parse(told).token != "tailscale"
    machine.join(told, "--name", "invited")
    eventually(lambda: connected(client, "invited"), "invited is connected")
    client.admin.revoke_worker("invited")


def test_where_the_program_is_missing_the_start_says_so(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "corral.yaml").write_text(f"{YAML}auth: tailscale\nworker: {{enabled: false}}\n")
    with LiveController(home, environ={"PATH": "/nowhere"}) as live:
        assert "tailscale is not installed here" in live.log
        with corral.Client(home=home) as client:
            assert parse(client.admin.invite_worker()).token != "tailscale"
