"""A WebSocket that one thread reads and writes.

The library's own blocking client reads in a second thread, and OpenSSL allows no reading beside
writing on one TLS connection: now and then a request never left, and the server heard nothing.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect


class BlockingWebSocket:
    def __init__(self, url: str, *, open_timeout: float, **options: Any) -> None:
        """Raises TimeoutError: "handshake" is in it where the server took the connection."""
        where = urlsplit(url)
        address = (where.hostname or "", where.port or (443 if where.scheme == "wss" else 80))
        options["sock"] = socket.create_connection(address, open_timeout)
        options["open_timeout"] = open_timeout
        options["ping_interval"] = None  # nobody would hear the answer between two calls
        self._loop = asyncio.new_event_loop()
        try:
            self._socket = self._loop.run_until_complete(_opened(url, options))
        except BaseException:
            options["sock"].close()
            self._loop.close()
            raise

    def send(self, data: bytes | str) -> None:
        self._loop.run_until_complete(self._socket.send(data))

    def recv(self, timeout: float) -> bytes | str:
        """Raises TimeoutError. What came just then is not lost."""
        return self._loop.run_until_complete(asyncio.wait_for(self._socket.recv(), timeout))

    def close(self) -> None:
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._socket.close())
            self._loop.close()


async def _opened(url: str, options: dict[str, Any]) -> ClientConnection:
    return await connect(url, **options)
