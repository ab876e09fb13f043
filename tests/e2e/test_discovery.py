"""A machine finds a controller by itself: real mDNS over a cable between two network namespaces."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import secrets
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import corral
from corral.core.errors import CorralError, WrongCertificate
from corral.joining import trust
from tests.debian import needs
from tests.e2e.test_joining import Machine, connected
from tests.eventually import eventually
from tests.live import CORRAL, LiveController

YAML = "grace_s: 2\ncancel_grace_s: 1\nshutdown_grace_s: 1\nworker: {enabled: false}\n"


ONE_AT_A_TIME = Path(tempfile.gettempdir(), "corral-tests-of-discovery")
"""Locked while a run announces itself: another one would find its controller too."""


class Cable:
    """Another network, on the other end of a cable from here."""

    def __init__(self) -> None:
        self._ip = needs("ip", "iproute2")
        mark = secrets.token_hex(3)
        self.space, self._here, self._there = f"corral-{mark}", f"cora{mark}", f"corb{mark}"
        third = int(mark[:2], 16)
        self.near, self.far = f"10.177.{third}.1", f"10.177.{third}.2"

    def _run(self, *words: str) -> None:
        subprocess.run([self._ip, *words], check=True, capture_output=True, text=True)

    def __enter__(self) -> Cable:
        self._run("netns", "add", self.space)
        here, there, space = self._here, self._there, self.space
        self._run("link", "add", here, "type", "veth", "peer", "name", there, "netns", space)
        self._run("addr", "add", f"{self.near}/24", "dev", here)
        self._run("link", "set", here, "up")
        inside = ("-n", space)
        self._run(*inside, "addr", "add", f"{self.far}/24", "dev", there)
        self._run(*inside, "link", "set", there, "up")
        self._run(*inside, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_: object) -> None:
        self._run("netns", "del", self.space)

    def inside(self) -> tuple[str, ...]:
        return (self._ip, "netns", "exec", self.space)


@pytest.fixture(scope="module")
def cable() -> Iterator[Cable]:
    if os.geteuid() != 0:
        pytest.skip("needs root: network namespaces")
    with ONE_AT_A_TIME.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with Cable() as made:
            yield made


@pytest.fixture(scope="module")
def live(cable: Cable, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    home = tmp_path_factory.mktemp("found")
    (home / "corral.yaml").write_text(YAML)
    with LiveController(home, "--host", cable.near) as made:
        yield made


@pytest.fixture
def client(live: LiveController) -> Iterator[corral.Client]:
    with corral.Client(home=live.home) as made:
        yield made


class Elsewhere(Machine):
    """A machine at the other end of the cable, that was told nothing."""

    def __init__(self, home: Path, cable: Cable) -> None:
        super().__init__(home)
        self._inside = cable.inside()

    def asks(self, name: str) -> None:
        self.home.mkdir(exist_ok=True)
        with (self.home / "out").open("wb") as out:
            self.process = subprocess.Popen(
                [*self._inside, CORRAL, "worker", "join", "--foreground", "--name", name],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self) -> str:
        return (self.home / "out").read_text()


@pytest.fixture
def machine(tmp_path: Path, cable: Cable) -> Iterator[Elsewhere]:
    made = Elsewhere(tmp_path / "machine", cable)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.terminate()
        made.process.wait(20)


def code_of(said: str) -> str:
    found = re.search(r"^  (\d{3}) (\d{3})$", said, re.MULTILINE)
    return f"{found[1]}{found[2]}" if found else ""


def operator(live: LiveController, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CORRAL, "worker", *words], env=live.environ, capture_output=True, text=True, timeout=60
    )


def test_a_machine_finds_the_controller_and_is_confirmed(
    live: LiveController, client: corral.Client, machine: Elsewhere, cable: Cable
) -> None:
    machine.asks("finder")
    eventually(lambda: code_of(machine.said), "a code")
    shown = json.loads(operator(live, "requests", "--json").stdout)
    assert [(one["name"], one["address"]) for one in shown] == [("finder", cable.far)]
    assert shown[0]["code"] == code_of(machine.said)
    assert not connected(client, "finder")  # nothing before somebody says so
    wrong = operator(live, "confirm", f"{(int(shown[0]['code']) + 1) % 10**6:06}")
    assert wrong.returncode == 1
    assert "stands in between" in wrong.stderr
    assert "finder is a worker now" in operator(live, "confirm", shown[0]["code"]).stdout
    eventually(lambda: connected(client, "finder"), "finder is connected")
    assert client.run(abs, (-8,), worker="finder", output=None) == 8
    assert "No machine asks" in operator(live, "requests").stderr


class InBetween:
    """Somebody with another certificate, who passes on every word; but gives the own one away,
    unless `honest`."""

    def __init__(self, folder: Path, host: str, port: int, *, honest: bool = False) -> None:
        certificate, key = trust.kept_certificate(folder / "tls")
        self._own = b"" if honest else certificate.read_bytes()
        self._inner = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._inner.load_cert_chain(certificate, key)
        self._outer = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._outer.check_hostname, self._outer.verify_mode = False, ssl.CERT_NONE
        self._place = (host, port)

    async def __aenter__(self) -> InBetween:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._inner)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = b""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            asked = await reader.readuntil(b"\r\n")
        if self._own and asked.startswith(b"GET /certificate "):
            size = b"Content-Length: %d\r\n\r\n" % len(self._own)
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + size + self._own)
            await reader.readuntil(b"\r\n\r\n")
            return writer.close()
        there = await asyncio.open_connection(*self._place, ssl=self._outer)
        there[1].write(asked)
        await asyncio.gather(self._pass(reader, there[1]), self._pass(there[0], writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()


async def test_somebody_in_between_shows(
    live: LiveController, client: corral.Client, cable: Cable, tmp_path: Path
) -> None:
    port = int(live.url.rpartition(":")[2])
    join = (
        "import sys; from corral.cli.workers.join import paired; "
        "from corral.joining.discovery import Found; "
        "paired(Found('barn', '127.0.0.1', int(sys.argv[1])), 'victim')"
    )
    async with InBetween(tmp_path, cable.near, port) as between:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", join, str(between.port)), stderr=asyncio.subprocess.PIPE
        )
        assert process.stderr is not None
        said = ""
        while not code_of(said):
            line = await asyncio.wait_for(process.stderr.readline(), 20)
            assert line, said
            said += line.decode()
        (shown,) = await asyncio.to_thread(client.admin.join_requests)
        process.kill()
        await process.wait()
    assert shown.name == "victim"
    assert shown.code != code_of(said)


async def test_nobody_can_give_the_certificate_of_another_away(
    live: LiveController, cable: Cable, tmp_path: Path
) -> None:
    port = int(live.url.rpartition(":")[2])
    async with InBetween(tmp_path, cable.near, port, honest=True) as between:
        with pytest.raises(WrongCertificate, match="stands in between"):
            await asyncio.to_thread(trust.offered, "127.0.0.1", between.port)


def test_where_nobody_is_it_says_so(machine: Elsewhere, tmp_path: Path) -> None:
    alone = Machine(tmp_path / "alone")
    unshare = needs("unshare", "util-linux")
    done = subprocess.run(
        [unshare, "-n", "sh", "-c", f"ip link set lo up; exec {CORRAL} worker join"],
        env=alone.environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "No controller answers on this network" in done.stderr


def test_a_controller_on_loopback_takes_no_requests(controller: LiveController) -> None:
    with (
        corral.Client(controller.address, controller.token) as alone,
        pytest.raises(CorralError, match="discoverable"),
    ):
        alone.admin.join_requests()
