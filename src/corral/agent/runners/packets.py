"""Orders to a forked runner: each a packet that the runner takes when it is ready for it, and that
the agent takes back as long as the runner has not.

A runner takes one order at a time. So of the orders it was sent, those it took and did not answer
are at most one, and the kernel decides who was first.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import deque

from corral.agent.runners.orders import PACKET

assert sys.platform != "win32"

_BUFFER = 1 << 20


class Packets:
    ahead = True

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._ours, self._theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        self._ours.setblocking(False)
        self._unsent: deque[bytes] = deque()

    @property
    def word(self) -> str:
        return str(self._theirs.fileno())

    @property
    def inherited(self) -> tuple[int, ...]:
        """The agent keeps it too: what a runner left unread when it died is taken back from
        there."""
        return (self._theirs.fileno(),)

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
        """The packets that the runner had not taken; now it never will."""
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
