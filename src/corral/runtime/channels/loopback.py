"""How `corral.job` reaches the runner where no pipe is inherited: over loopback, with a token.

Each line is answered when it is on its way to the agent, so an attempt never ends before its words.
"""

from __future__ import annotations

import socket
from _thread import allocate_lock

ANSWER_WITHIN_S = 10.0


class Words:
    def __init__(self, address: str) -> None:
        port, _, token = address.partition(" ")
        self._lock = allocate_lock()
        self._socket = socket.create_connection(("127.0.0.1", int(port)), timeout=ANSWER_WITHIN_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(f"{token} words\n".encode())

    def say(self, line: bytes) -> None:
        with self._lock:
            self._socket.sendall(line)
            self._socket.recv(1)

    def close(self) -> None:
        self._socket.close()
