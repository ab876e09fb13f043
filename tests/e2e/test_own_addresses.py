"""Strangers reach a controller at every address that it has, also at those that come while it runs:
curl, a plain gRPC client and neighbours that look around, each in a network of its own."""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.joining import trust
from tests.debian import needs
from tests.eventually import eventually
from tests.live import LiveController
from tests.ports import free_port

CLONE_NEWNET = 0x40000000
LOOK = """
import json
from zeroconf import ServiceBrowser, Zeroconf
from corral.joining.discovery import SERVICE, look
(found,) = look()
with Zeroconf() as zeroconf:
    heard = []
    ServiceBrowser(zeroconf, SERVICE, handlers=[lambda name, **_: heard.append(name)])
    import time
    end = time.monotonic() + 30
    while not heard and time.monotonic() < end:
        time.sleep(0.05)
    info = zeroconf.get_service_info(SERVICE, heard[0], 10_000)
    print(json.dumps([found, sorted(info.parsed_addresses())]))
"""
CALL = """
import sys, grpc
from corral.contract import corral_pb2 as pb
certificate, token, address = sys.argv[1:]
vouching = grpc.ssl_channel_credentials(open(certificate, "rb").read())
with grpc.secure_channel(address, vouching) as channel:
    to = pb.HealthRequest.SerializeToString, pb.HealthReply.FromString
    call = channel.unary_unary("/corral.v1.Orchestrator/HealthCheck", *to)
    told = call(pb.HealthRequest(), metadata=[("authorization", f"Bearer {token}")], timeout=20)
    print(told.status)
"""


def _ip(*words: str) -> None:
    subprocess.run([needs("ip", "iproute2"), *words], check=True, capture_output=True, text=True)


class Space:
    """A network of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")
        self.inside = (needs("ip", "iproute2"), "netns", "exec", name)

    def close(self) -> None:
        _ip("netns", "del", self.name)

    def run(self, *command: str) -> str:
        done = subprocess.run([*self.inside, *command], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


class InItsSpace(LiveController):
    """A controller that listens everywhere, where nothing but that network is."""

    def __init__(self, home: Path, space: Space, *flags: str) -> None:
        super().__init__(home, "--host", "0.0.0.0", *flags, prefix=space.inside)
        self._space = space

    def healthy(self) -> bool:
        answers: list[bool] = []

        def ask() -> None:
            with open(f"/run/netns/{self._space.name}") as space:
                libc = ctypes.CDLL(None, use_errno=True)
                assert not libc.setns(space.fileno(), CLONE_NEWNET), os.strerror(ctypes.get_errno())
            answers.append(super(InItsSpace, self).healthy())

        asking = threading.Thread(target=ask)
        asking.start()
        asking.join()
        return bool(answers) and answers[0]


class Neighbourhood:
    """The controller's machine, and two others that it can be wired to."""

    def __init__(self, folder: Path) -> None:
        mark = secrets.token_hex(3)
        self._net = f"10.178.{int(mark[:2], 16)}"
        self.barn, self.attic, self.cellar = (
            Space(f"corral-{mark}-{name}") for name in ("barn", "attic", "cellar")
        )
        home = folder / "home"
        home.mkdir()
        (home / "corral.yaml").write_text("worker: {enabled: false}\nshutdown_grace_s: 1\n")
        self.port, self.grpc_port = free_port(), free_port()
        ports = (f"--port={self.port}", f"--grpc-port={self.grpc_port}")
        self.controller = InItsSpace(home, self.barn, *ports)
        self.certificate = str(home / "tls" / "certificate.pem")

    def close(self) -> None:
        for space in (self.barn, self.attic, self.cellar):
            space.close()

    def wire(self, space: Space, number: int) -> str:
        """A cable from there to the controller, and the controller's address on it."""
        barn, name = self.barn.name, f"eth{number}"
        _ip("-n", barn, "link", "add", name, "type", "veth", "peer", name, "netns", space.name)
        # Parts of 32 addresses: a neighbour has no way to the others.
        near, far = f"{self._net}.{number * 32 + 1}", f"{self._net}.{number * 32 + 2}"
        for where, address in ((barn, near), (space.name, far)):
            _ip("-n", where, "addr", "add", f"{address}/27", "dev", name)
            _ip("-n", where, "link", "set", name, "up")
        return near

    def curl(self, space: Space, host: str, *more: str) -> str:
        url = f"https://{host}:{self.port}/health"
        words = ("-fsS", "--noproxy", "*", "--cacert", self.certificate, *more, url)
        return str(json.loads(space.run(needs("curl", "curl"), *words))["status"])

    def call(self, space: Space, host: str) -> str:
        words = (self.certificate, self.controller.token, f"{host}:{self.grpc_port}")
        return space.run(sys.executable, "-c", CALL, *words).strip()

    def heard(self, space: Space) -> tuple[str, list[str]]:
        """Under which name a neighbour finds the controller, and all addresses it is told."""
        (name, host, port), told = json.loads(space.run(sys.executable, "-c", LOOK))
        assert port == self.port
        return name, sorted({host, *told})


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Neighbourhood]:
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")
    made = Neighbourhood(tmp_path)
    yield made
    made.close()


def test_an_interface_that_comes_up_later_is_served_named_and_announced(
    there: Neighbourhood,
) -> None:
    hostname = socket.gethostname().split(".")[0]
    first = there.wire(there.attic, 1)
    with there.controller:
        resolved = f"{hostname}.local:{there.port}:{first}"
        assert there.curl(there.attic, first) == "ok"
        assert there.curl(there.attic, f"{hostname}.local", "--resolve", resolved) == "ok"
        assert there.call(there.attic, first) == "ok"
        assert there.heard(there.attic) == (hostname, [first])

        later = there.wire(there.cellar, 2)
        eventually(lambda: there.curl(there.cellar, later), "it is named", ignoring=AssertionError)
        assert there.call(there.cellar, later) == "ok"
        assert there.heard(there.cellar) == (hostname, [later])
        assert there.heard(there.attic) == (hostname, [first])  # nothing of other networks

        assert first in str(there.controller.card["elsewhere"])
        _ip("-n", there.barn.name, "link", "del", "eth1")
        eventually(lambda: first not in _named(there), "a name that is gone")
        eventually(lambda: later in str(there.controller.card["elsewhere"]), "another address")
        assert there.curl(there.cellar, later) == "ok"


def test_a_controller_with_two_ways_to_a_machine_is_one(there: Neighbourhood) -> None:
    ways = {there.wire(there.attic, 1), there.wire(there.attic, 2)}
    with there.controller:
        name, told = there.heard(there.attic)
        assert name == socket.gethostname().split(".")[0]
        assert set(told) <= ways


def _named(there: Neighbourhood) -> str:
    shown = there.controller.home / "tls" / "shown.pem"
    openssl = needs("openssl", "openssl")
    words = (openssl, "x509", "-in", str(shown), "-noout", "-text")
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_after_a_start_elsewhere_the_same_pins_hold(there: Neighbourhood) -> None:
    first = there.wire(there.attic, 1)
    with there.controller:
        pem = Path(there.certificate).read_text()
        pin = ("--pinnedpubkey", f"sha256//{trust.public_key_pin(pem)}")
        assert there.curl(there.attic, first, *pin) == "ok"
    _ip("-n", there.barn.name, "link", "del", "eth1")
    second = there.wire(there.attic, 3)
    with there.controller:
        assert Path(there.certificate).read_text() == pem
        assert there.curl(there.attic, second, *pin) == "ok"
        assert there.call(there.attic, second) == "ok"
        assert trust.fingerprint(pem) in there.barn.run(
            *(sys.executable, "-c"),
            "import sys; from corral.joining import trust;"
            "print(trust.fingerprint(trust.fetched('127.0.0.1', int(sys.argv[1]), sys.argv[2])))",
            *(str(there.port), trust.fingerprint(pem)),
        )
