"""A program's side of the local door: the shortest road to a controller on the same machine.

Where anything about the socket is not as expected, a call goes over gRPC; the idempotency key makes
that the same job.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import sys
from pathlib import Path
from typing import cast

from corral.contract import corral_pb2 as pb
from corral.contract.service import MAX_MESSAGE_BYTES
from corral.core.errors import CorralError, from_view
from corral.home import read_json
from corral.protocol import parcels

READ = 1 << 16


def socket_of(home: Path | None, address: str) -> Path | None:
    """The socket of the controller that wrote down this gRPC address in its home."""
    if home is None or sys.platform == "win32":
        return None
    path = home / parcels.SOCKET
    told = read_json(home / "controller.json")
    return path if told.get("grpc") == address and path.is_socket() else None


def _answer(payload: bytes) -> pb.SubmitJobsReply:
    if payload[:1] == parcels.GOOD:
        return pb.SubmitJobsReply.FromString(payload[1:])
    error = from_view(json.loads(payload[1:]))
    raise error if error is not None else CorralError("The controller answered in riddles.")


class LocalSockets:
    """Blocking calls: a socket for each thread that calls at the same time."""

    def __init__(self, path: Path, token: str) -> None:
        self._path, self._token = path, token
        self._free: list[tuple[socket.socket, parcels.Parcels]] = []
        self._pid = os.getpid()
        self._numbers = itertools.count(1)

    def submit(self, request: bytes, correlation_id: str) -> pb.SubmitJobsReply:
        """The answer, or the controller's own error; OSError where there is no way."""
        if self._pid != os.getpid():
            self._free, self._pid = [], os.getpid()  # a fork shares no sockets
        try:
            local, reader = self._free.pop()
        except IndexError:  # asking first would leave time for another thread to take it
            local, reader = self._connect()
        try:
            number = next(self._numbers)
            local.sendall(parcels.parcel(number, parcels.call(correlation_id, request)))
            payload = None
            while payload is None:
                data = local.recv(READ)
                if not data:
                    raise ConnectionResetError
                for answered, found in reader.take(data):
                    payload = found if answered == number else payload
        except BaseException:
            local.close()  # whatever it still brings is nobody's any more
            raise
        self._free.append((local, reader))
        return _answer(payload)

    def _connect(self) -> tuple[socket.socket, parcels.Parcels]:
        if sys.platform == "win32":
            raise OSError("There is no local door on Windows.")
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            local.connect(str(self._path))
            local.sendall(parcels.parcel(0, self._token.encode()))
        except OSError:
            local.close()
            raise
        return local, parcels.Parcels(MAX_MESSAGE_BYTES)

    def close(self) -> None:
        while self._free:
            self._free.pop()[0].close()

    def __del__(self) -> None:
        self.close()  # a client that nobody closed


class AsyncLocalSocket(asyncio.Protocol):
    """Calls of an event loop: all of them share one socket."""

    def __init__(self) -> None:
        self._parcels = parcels.Parcels(MAX_MESSAGE_BYTES)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[pb.SubmitJobsReply]] = {}
        self._transport: asyncio.Transport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    async def connect(cls, path: Path, token: str) -> AsyncLocalSocket:
        loop = asyncio.get_running_loop()
        transport, local = await loop.create_unix_connection(cls, str(path))
        transport.write(parcels.parcel(0, token.encode()))
        return local

    async def submit(self, request: bytes, correlation_id: str) -> pb.SubmitJobsReply:
        if self._transport is None:
            raise ConnectionResetError
        number = next(self._numbers)
        waiting: asyncio.Future[pb.SubmitJobsReply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        self._transport.write(parcels.parcel(number, parcels.call(correlation_id, request)))
        try:
            return await waiting
        finally:
            self._waiting.pop(number, None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        for number, payload in self._parcels.take(data):
            waiting = self._waiting.get(number)
            if waiting is None or waiting.done():
                continue
            try:
                waiting.set_result(_answer(payload))
            except CorralError as error:
                waiting.set_exception(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionResetError())

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def drop(self) -> None:
        """The same from any thread, and whatever became of the event loop."""
        if self._loop is not None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.close)
