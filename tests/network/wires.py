"""Machines of a real network on this one: network namespaces behind a switch, whose wires can be
cut one way or both.

The switch has a namespace of its own, and so has every machine. The host has a wire to the switch
too, so that tests ask the controller as a client elsewhere would.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Sequence
from typing import Literal

from tests import debian
from tests.eventually import eventually

Way = Literal["up", "down"]
"""`up` is what a machine sends, `down` what it is sent."""
BOTH: tuple[Way, Way] = ("up", "down")

_RULES = """
table bridge wires {
  set up { type ifname; }
  set down { type ifname; }
  chain pass {
    type filter hook forward priority 0; policy accept;
    iifname @up drop
    oifname @down drop
  }
}
"""


def unavailable() -> str:
    """Why there can be no such network here, or nothing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program, package in (("ip", "iproute2"), ("nft", "nftables"), ("nsenter", "util-linux")):
        if why := debian.missing(program, package):
            return why
    try:
        Network([]).close()
    except subprocess.CalledProcessError as error:
        return f"this kernel makes no such network: {str(error.stderr).strip()}"
    return ""


def _run(*words: str, said: str | None = None) -> None:
    subprocess.run(words, input=said, check=True, capture_output=True, text=True)


class Network:
    """Machines by name, each with an address. `close` takes all of it away."""

    def __init__(self, names: Sequence[str]) -> None:
        self._mark = secrets.token_hex(3)
        self._net = f"10.213.{secrets.randbelow(254) + 1}"
        self._ports = {name: f"p{number}" for number, name in enumerate(names, 1)}
        self._spaces: list[str] = []
        self._cut: dict[str, set[Way]] = {}
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        hub = self._space("hub")
        _run("ip", "-n", hub, "link", "add", "bridge", "up", "type", "bridge")
        _run("nsenter", f"--net=/run/netns/{hub}", "nft", "-f", "-", said=_RULES)
        host = f"crl{self._mark}"
        self._wire(hub, "p0", host, "1")
        _run("ip", "addr", "add", f"{self._net}.254/24", "dev", host)
        _run("ip", "link", "set", host, "up")
        for name, port in self._ports.items():
            space = self._space(name)
            self._wire(hub, port, "eth0", space)
            _run("ip", "-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            _run("ip", "-n", space, "link", "set", "eth0", "up")
            _run("ip", "-n", space, "link", "set", "lo", "up")

    def _space(self, name: str) -> str:
        space = f"corral-{self._mark}-{name}"
        _run("ip", "netns", "add", space)
        self._spaces.append(space)
        return space

    def _wire(self, hub: str, port: str, far: str, space: str) -> None:
        link = ("link", "add", port, "type", "veth", "peer", "name", far, "netns", space)
        _run("ip", "-n", hub, *link)
        _run("ip", "-n", hub, "link", "set", port, "master", "bridge", "up")

    def address(self, name: str) -> str:
        return f"{self._net}.{list(self._ports).index(name) + 1}"

    @property
    def host(self) -> str:
        """This machine's own address there."""
        return f"{self._net}.254"

    def inside(self, name: str) -> list[str]:
        """Words before a command that end by becoming it, on that machine."""
        return ["nsenter", f"--net=/run/netns/corral-{self._mark}-{name}"]

    def reset(self, name: str) -> None:
        """Ends every connection of that machine as a crash would: both sides get a reset."""
        command = [*self.inside(name), "ss", "-K", "state", "established"]
        subprocess.run(command, check=False, capture_output=True)  # it may have none

    def kill(self, name: str) -> None:
        """Ends everything that runs on that machine, at once."""
        space = f"corral-{self._mark}-{name}"

        def empty() -> bool:
            command = ["ip", "netns", "pids", space]
            pids = subprocess.run(
                command, check=True, capture_output=True, text=True
            ).stdout.split()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            return not pids

        eventually(empty, f"nothing runs on {name}")

    def cut(self, name: str, *ways: Way) -> None:
        """Loses everything on that machine's wire, without telling anybody."""
        self._cut[name] = {*self._cut.get(name, ()), *ways}
        self._rule()

    def heal(self, name: str) -> None:
        if self._cut.pop(name, None):
            self._rule()

    def _rule(self) -> None:
        lines = ["flush set bridge wires up", "flush set bridge wires down"]
        for name, ways in self._cut.items():
            lines += [f'add element bridge wires {way} {{ "{self._ports[name]}" }}' for way in ways]
        hub = f"/run/netns/corral-{self._mark}-hub"
        _run("nsenter", f"--net={hub}", "nft", "-f", "-", said="\n".join(lines))

    def close(self) -> None:
        for space in self._spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
        self._spaces.clear()
