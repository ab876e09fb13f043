"""What of HTTP never reaches the application: headers that are too many, too long or too slow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import MutableMapping
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from corral.core.errors import CorralError, HeadersTooLarge, InvalidRequest, RequestTimeout
from corral.core.limits import InputLimits as Limits

TRANSPORT = "corral.transport"
HELD = 8 << 10
"""Bytes of a stream that wait in this process for a reader, before the next are made."""
HELD_BY_THE_SYSTEM = 64 << 10


def hold_little(scope: MutableMapping[str, Any]) -> None:
    """Buffers little from here on: a stream may have thousands of readers that never read, and the
    kernel alone would hold megabytes for each."""
    transport: asyncio.WriteTransport | None = scope.get(TRANSPORT)
    if transport is None:
        return
    transport.set_write_buffer_limits(high=HELD)
    connected = transport.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, HELD_BY_THE_SYSTEM)


class Limited(HttpToolsProtocol):
    """uvicorn's protocol with limits: a client that sends a byte of its head now and then would
    keep its connection for ever; and above `most_connections` each new one closes an idle one."""

    limits: Limits
    most_connections: int
    _timer: asyncio.TimerHandle | None = None
    _raw = _size = _count = 0
    _refusal: CorralError | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect()
        if len(self.connections) > self.most_connections:
            others = (one for one in self.connections if one is not self)
            idle = (one for one in others if isinstance(one, Limited) and one.is_idle)
            next(idle, self).transport.abort()

    @property
    def is_idle(self) -> bool:
        asked = self.cycle is not None and not self.cycle.response_complete
        return not asked and not self.transport.is_closing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._met()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        reading = self._timer is not None
        if not reading and (self.cycle is None or not self.cycle.more_body):
            self._expect()  # the head of the next request on this connection begins
        super().data_received(data)
        if self._timer is None or self.transport.is_closing():
            return
        self._raw += len(data)
        if self._raw > self.limits.header_bytes:
            self._refuse(self._too_large())

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count += 1
        self._size += len(name) + len(value)
        if self._count > self.limits.headers or self._size > self.limits.header_bytes:
            self._refusal = self._too_large()
            raise httptools.HttpParserError("limits")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._met()
        self.scope[TRANSPORT] = self.transport  # type: ignore[literal-required]
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._refusal or InvalidRequest("This is no HTTP request."))

    def _expect(self) -> None:
        self._raw = self._size = self._count = 0
        self._timer = self.loop.call_later(self.limits.header_s, self._late)

    def _met(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        self._refuse(RequestTimeout(f"No request came within {self.limits.header_s:g} s."))

    def _too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(
            f"The headers are more than {self.limits.headers:,}, or longer than "
            f"{self.limits.header_bytes:,} bytes."
        )

    def _refuse(self, error: CorralError) -> None:
        self._met()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            # Nobody else is writing on this connection.
            body = json.dumps(error.view()).encode()
            head = (
                f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
                "content-type: application/json\r\nconnection: close\r\n"
                f"content-length: {len(body)}\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


def limited(limits: Limits, connections: int) -> type[HttpToolsProtocol]:
    """The class with these limits, as uvicorn takes it."""
    return type("Limited", (Limited,), {"limits": limits, "most_connections": connections})
