"""Finding a controller on the local network, and being found there: mDNS, as printers do it.

Only its address is announced; people see by a code that it is the right one (`pairing`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import structlog

if TYPE_CHECKING:
    from zeroconf.asyncio import AsyncZeroconf

log = structlog.get_logger()

SERVICE = "_corral._tcp.local."
LOOK_S, PATIENCE_S = 3.0, 15.0
"""Seconds for everybody to answer, and for a first answer at all."""


NAME_BYTES = 50


class Found(NamedTuple):
    name: str
    host: str
    port: int


class Announced(NamedTuple):
    """Of one interface."""

    addresses: tuple[str, ...]
    said_from: tuple[str, ...]
    """Its IPv4 addresses: announcements are made over that, whatever they say."""


class Announcement:
    """Says where this controller is, on each network what is its address there, until it is closed.

    On each by itself: what one speaks for all networks tells each neighbour the addresses that the
    controller has on the others, too."""

    def __init__(self, name: str, mark: str, port: int) -> None:
        self._name, self._port = name, port
        self._label = f"{name[:NAME_BYTES]}-{mark}"
        """One for all networks, some of which may well be the same, and no other controller's."""
        self._told: dict[str, tuple[Announced, AsyncZeroconf]] = {}

    async def follow(self, interfaces: Mapping[str, Announced]) -> None:
        """From now on these, by the names of interfaces. Being found is a convenience: where a
        network does not allow it, we go on."""
        for interface, (announced, _) in list(self._told.items()):
            if interfaces.get(interface) != announced:
                await self._forget(interface)
        for interface, announced in interfaces.items():
            if interface in self._told:
                continue
            try:
                await self._tell(interface, announced)
            except Exception as error:
                reason = str(error) or type(error).__name__
                log.warning("not_announced", interface=interface, reason=reason)

    async def _tell(self, interface: str, announced: Announced) -> None:
        from zeroconf import ServiceInfo
        from zeroconf.asyncio import AsyncZeroconf

        info = ServiceInfo(
            SERVICE,
            f"{self._label}.{SERVICE}",
            port=self._port,
            parsed_addresses=list(announced.addresses),
            properties={"version": "1", "name": self._name},
            server=f"{self._label}.local.",
        )
        made = AsyncZeroconf(interfaces=list(announced.said_from))
        self._told[interface] = announced, made
        try:
            await made.zeroconf.async_wait_for_start()
            for reader in made.zeroconf.engine.readers:
                _hear_alone(interface, reader.fileno)
            await made.async_register_service(info, cooperating_responders=True)
        except BaseException:
            await self._forget(interface)
            raise

    async def _forget(self, interface: str) -> None:
        _, made = self._told.pop(interface)
        with contextlib.suppress(Exception):  # it may be the network that is gone
            await made.async_close()

    async def close(self) -> None:
        for interface in list(self._told):
            await self._forget(interface)


def _hear_alone(interface: str, fileno: int) -> None:
    """Linux gives a socket what comes from any network that some socket listens to; and where
    several share a port, IP_MULTICAST_ALL may give it what is for another one."""
    if sys.platform == "linux":
        with socket.socket(fileno=os.dup(fileno)) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")


def look() -> list[Found]:
    """Controllers that answer on the local network at once, or the first one later."""
    from zeroconf import ServiceBrowser, ServiceStateChange, Zeroconf

    heard: set[str] = set()

    def changed(
        zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        if state_change is ServiceStateChange.Removed:
            heard.discard(name)
        else:
            heard.add(name)

    found: list[Found] = []
    with Zeroconf() as zeroconf:
        browser = ServiceBrowser(zeroconf, SERVICE, handlers=[changed])
        time.sleep(LOOK_S)
        until = time.monotonic() + PATIENCE_S - LOOK_S
        while not heard and time.monotonic() < until:
            time.sleep(0.1)
        browser.cancel()
        for name in sorted(heard):
            info = zeroconf.get_service_info(SERVICE, name)
            addresses = info.parsed_scoped_addresses() if info is not None else []
            if info is not None and info.port and addresses:
                called = (info.properties.get(b"name") or b"").decode("utf-8", "replace")
                label = name.removesuffix(f".{SERVICE}")
                found.append(
                    Found(
                        called if called.isprintable() and called else label,
                        addresses[0],
                        info.port,
                    )
                )
    return found
