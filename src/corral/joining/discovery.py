"""Finding a controller on the local network, and being found there: mDNS, as printers do it.

Only its address is announced; people see by a code that it is the right one (`pairing`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from typing import TYPE_CHECKING, NamedTuple

import structlog

if TYPE_CHECKING:
    from zeroconf.asyncio import AsyncZeroconf

log = structlog.get_logger()

SERVICE = "_corral._tcp.local."
LOOK_S, PATIENCE_S = 3.0, 15.0
"""Seconds for everybody to answer, and for a first answer at all."""


class Found(NamedTuple):
    name: str
    host: str
    port: int


class Announcement:
    """Says on the network where this controller is, until it is closed."""

    def __init__(self, name: str, address: str, port: int) -> None:
        self._name, self._address, self._port = name, address, port
        self._zeroconf: AsyncZeroconf | None = None
        self._opening: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """In the background: it takes a second or two."""
        self._opening = asyncio.create_task(self._open())

    async def _open(self) -> None:
        """Being found is a convenience: where the network does not allow it, we go on."""
        from zeroconf import ServiceInfo
        from zeroconf.asyncio import AsyncZeroconf

        try:
            info = ServiceInfo(
                SERVICE,
                f"{self._name}.{SERVICE}",
                port=self._port,
                parsed_addresses=_numeric(self._address),
                properties={"version": "1"},
                server=f"{self._name}.local.",
            )
            self._zeroconf = AsyncZeroconf()
            # Two controllers may well be called the same.
            await self._zeroconf.async_register_service(info, allow_name_change=True)
        except Exception as error:
            log.warning("not_announced", reason=str(error) or type(error).__name__)

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._zeroconf is not None:
            await self._zeroconf.async_unregister_all_services()
            await self._zeroconf.async_close()


def _numeric(address: str) -> list[str]:
    try:
        return [str(ipaddress.ip_address(address))]
    except ValueError:
        return sorted({str(one[4][0]) for one in socket.getaddrinfo(address, None)})


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
                found.append(Found(name.removesuffix(f".{SERVICE}"), addresses[0], info.port))
    return found
