"""The way of orders to a runner: how they are encoded, and whether they go as packets that can be
taken back or one line at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from corral.runtime.order import Cancel, Order

PACKET = 32 * 1024
"""Longer orders go in several packets, which cannot be taken back: only to a runner that waits,
and nothing is sent behind them."""
BESIDE_DOCUMENT = 8 * 1024
"""What an order has beside its document, at most."""
AHEAD_LIMIT = PACKET - BESIDE_DOCUMENT
"""How large the document of an order may be that is sent ahead, or behind which one is."""


_encode = msgspec.json.Encoder().encode


def encode_line(told: Order[Any] | Cancel) -> bytes:
    """As the runner reads it. A document that is `msgspec.Raw` goes in as it came: nothing on a
    worker may change it."""
    return _encode(told) + b"\n"


class Orders(Protocol):
    @property
    def ahead(self) -> bool:
        """Whether orders may be sent that the runner is not ready for."""

    @property
    def word(self) -> str:
        """What the runner is told of them when it is started."""

    @property
    def inherited(self) -> tuple[int, ...]:
        """Descriptors that the runner needs for them."""

    def send(self, line: bytes) -> None: ...
    def take_back(self) -> list[bytes]:
        """The packets that the runner had not taken; now it never will."""

    def close(self) -> None: ...


class OrderLines:
    """Orders among the other lines on a spawned runner's stdin. What was written there cannot be
    taken back, so it gets one at a time, when it waits."""

    ahead = False
    word = "spawn"
    inherited: tuple[int, ...] = ()

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self.send = write

    def take_back(self) -> list[bytes]:
        return []

    def close(self) -> None:
        """The runner's stdin is not ours to close."""


def way_of_orders(write: Callable[[bytes], None], *, spawn: bool) -> Orders:
    if sys.platform != "win32" and not spawn:
        from corral.agent.runners.packets import Packets

        return Packets()
    return OrderLines(write)
