"""Which addresses this machine has, and when that changes: Linux tells, elsewhere one looks."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
import sys
from collections.abc import AsyncGenerator, Iterator
from typing import NamedTuple

LOOK_AGAIN_S = 30.0
SETTLE_S = 0.5
"""An interface that comes up says so several times."""
TOLD_BYTES = 65_536
FAMILIES = (socket.AF_INET, socket.AF_INET6)
RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR = 0x1, 0x10, 0x100


class Interface(NamedTuple):
    addresses: tuple[str, ...]
    """Without those that mean something on one link alone (fe80::…)."""
    is_up: bool


def interfaces() -> dict[str, Interface]:
    import psutil

    states = psutil.net_if_stats()
    found: dict[str, set[str]] = {}
    for name, entries in psutil.net_if_addrs().items():
        device = name.partition(":")[0]  # eth0:1 is a name for a part of the addresses of eth0
        numeric = (one.address for one in entries if one.family in FAMILIES)
        found.setdefault(device, set()).update(one for one in numeric if not _is_of_link(one))
    return {
        name: Interface(tuple(sorted(addresses)), name in states and states[name].isup)
        for name, addresses in found.items()
        if addresses
    }


def _is_of_link(address: str) -> bool:
    found = ipaddress.ip_address(address)
    return found.version == 6 and found.is_link_local


async def changes() -> AsyncGenerator[None, None]:
    """At once, so that nothing is missed, and each time that addresses may have changed."""
    told = _telling()
    if told is None:
        while True:
            yield
            await asyncio.sleep(LOOK_AGAIN_S)
    loop = asyncio.get_running_loop()
    with told:
        yield
        while True:
            with _too_much_is_fine():
                await loop.sock_recv(told, TOLD_BYTES)
            await asyncio.sleep(SETTLE_S)
            with contextlib.suppress(BlockingIOError):
                while True:
                    with _too_much_is_fine():
                        told.recv(TOLD_BYTES)
            yield


@contextlib.contextmanager
def _too_much_is_fine() -> Iterator[None]:
    """More was told than the socket holds: that something changed is all there is to know."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOBUFS:
            raise


def _telling() -> socket.socket | None:
    """What the kernel tells of links and addresses; nothing where it tells nobody."""
    if sys.platform != "linux":
        return None
    told = None
    try:
        told = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
        )
        told.bind((0, RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR))
    except OSError:
        if told is not None:
            told.close()
        return None
    return told
