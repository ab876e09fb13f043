"""Orders to a runner: filled in, encoded, and sent as packets or as one line at a time."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from corral.core.job import Workload
from corral.runtime.files.downloads import Ticket
from corral.runtime.order import Cancel, Endpoint, Order, Renderer

if TYPE_CHECKING:
    from corral.agent.attempts.attempt import HeldAttempt

PACKET = 32 * 1024
"""Longer orders go in several packets, which cannot be taken back: only to a runner that waits,
and nothing is sent behind them."""
BESIDE_DOCUMENT = 8 * 1024
"""What an order has beside its document, at most."""
AHEAD_LIMIT = PACKET - BESIDE_DOCUMENT
"""How large the document of an order may be that is sent ahead, or behind which one is."""

_BUFFER = 1 << 20
_encode = msgspec.json.Encoder().encode


def encode_line(told: Order[Any] | Cancel) -> bytes:
    """A document that is `msgspec.Raw` goes in as it came: nothing on a worker may change it."""
    return _encode(told) + b"\n"


class OrderForm:
    """What all orders of this worker say alike, and what each attempt adds."""

    def __init__(self) -> None:
        self.endpoint = Endpoint(url="")
        self.renderer = Renderer(worker="", driver="", backends=[])

    def line(self, attempt: HeldAttempt, work_dir: str) -> bytes:
        dispatch = attempt.dispatch
        order: Order[Any] = {
            "job": dispatch.job,
            "attempt": dispatch.attempt,
            "document": dispatch.document,
            "endpoint": self.endpoint,
            "token": dispatch.token,
            "work_dir": work_dir,
            "correlation_id": dispatch.correlation_id,
        }
        if dispatch.checkpoint:
            order["checkpoint"] = dispatch.checkpoint
        if attempt.code:
            order["code"] = attempt.code
        if attempt.inputs:
            order["inputs"] = attempt.inputs
        if attempt.workload is Workload.PIPELINE:
            order["renderer"] = self.renderer
        return encode_line(order)

    def ticket(self, attempt: HeldAttempt) -> Ticket:
        """For what the agent fetches on its behalf."""
        endpoint = self.endpoint
        certificate = endpoint.get("certificate", "")
        return Ticket(endpoint["url"], certificate, *attempt.key, attempt.dispatch.token)


class OrderLines:
    """Orders among the other lines on a spawned runner's stdin. What was written there cannot be
    taken back, so it gets one at a time, when it waits."""

    ahead = False
    """Whether orders may be sent that the runner is not ready for."""
    word = "spawn"
    """What the runner is told of them when it is started."""
    inherited: tuple[int, ...] = ()
    """Descriptors that the runner needs for them."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write

    def send(self, line: bytes) -> None:
        self._write(line)

    def take_back(self) -> list[bytes]:
        """The packets that the runner had not taken; now it never will."""
        return []

    def close(self) -> None:
        """The runner's stdin is not ours to close."""


if sys.platform != "win32":

    class Packets(OrderLines):
        """Orders to a forked runner: each a packet that the agent can take back until the runner,
        ready for it, has taken it. The kernel decides who was first; and since a runner takes one
        at a time, at most one is taken and not answered."""

        ahead = True

        def __init__(self) -> None:
            self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for end in (self._ours, self._theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
            self._ours.setblocking(False)
            self._unsent: deque[bytes] = deque()
            self.word = str(self._theirs.fileno())
            # Kept here too: what a runner left unread when it died is taken back from there.
            self.inherited = (self._theirs.fileno(),)

        def send(self, line: bytes) -> None:
            for start in range(0, len(line), PACKET):
                self._unsent.append(line[start : start + PACKET])
            self._flush()

        def _flush(self) -> None:
            loop = asyncio.get_running_loop()
            while self._unsent:
                try:
                    self._ours.send(self._unsent[0])
                except BlockingIOError:
                    loop.add_writer(self._ours, self._flush)
                    return
                except OSError:  # the runner is gone; its end is reported elsewhere
                    self._unsent.clear()
                else:
                    self._unsent.popleft()
            loop.remove_writer(self._ours)

        def take_back(self) -> list[bytes]:
            packets: list[bytes] = []
            while True:
                try:
                    packets.append(self._theirs.recv(PACKET, socket.MSG_DONTWAIT))
                except BlockingIOError:
                    break
            packets += self._unsent
            self._unsent.clear()
            return packets

        def close(self) -> None:
            if self._ours.fileno() >= 0:
                asyncio.get_running_loop().remove_writer(self._ours)
            self._ours.close()
            self._theirs.close()


def way_of_orders(write: Callable[[bytes], None], *, spawn: bool) -> OrderLines:
    if sys.platform != "win32" and not spawn:
        return Packets()
    return OrderLines(write)
