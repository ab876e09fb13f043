"""The local door: submissions of programs on the controller's own machine, over a socket in its
home. The same words and the same checks as on gRPC, at a fifth of what a gRPC call costs.

Whoever can reach the socket is the owner of the home, and still shows a token.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import structlog
from google.protobuf.message import DecodeError

from corral import correlation
from corral.api import corral_pb2 as pb
from corral.api.correlation import refused
from corral.api.roles import METHODS
from corral.controller.access import Access
from corral.core.access import Caller
from corral.core.errors import CorralError, InvalidRequest, Unauthorized
from corral.protocol import parcels

log = structlog.get_logger()

LONGEST_PATH = 100
"""What the name of a socket may have on every system; a deeper home has only the gRPC door."""
CALLS_AT_ONCE = 1024
UNREAD_BYTES = 32 << 20

Submit = Callable[[pb.SubmitJobsRequest, Caller], Awaitable[pb.SubmitJobsReply]]


class LocalDoor:
    def __init__(self, submit: Submit, access: Access, parcel_bytes: int) -> None:
        self.submit, self.access, self.parcel_bytes = submit, access, parcel_bytes
        self._server: asyncio.AbstractServer | None = None
        self._open: set[_Visitor] = set()

    async def open(self, path: Path) -> None:
        if sys.platform == "win32" or len(os.fsencode(path)) > LONGEST_PATH:
            return
        path.unlink(missing_ok=True)
        loop = asyncio.get_running_loop()
        before = os.umask(0o177)
        try:
            self._server = await loop.create_unix_server(lambda: _Visitor(self, self._open), path)
        finally:
            os.umask(before)

    async def close(self, path: Path) -> None:
        if self._server is not None:
            self._server.close()
            path.unlink(missing_ok=True)
        for visitor in list(self._open):
            visitor.hang_up()


class _Visitor(asyncio.Protocol):
    """One program's socket; any number of calls may be on their way."""

    def __init__(self, door: LocalDoor, others: set[_Visitor]) -> None:
        self._door, self._others = door, others
        self._parcels = parcels.Parcels(door.parcel_bytes)
        self._transport: asyncio.Transport | None = None
        self._token: str | None = None
        self._answering: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._others.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.discard(self)
        self._transport = None

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            for number, payload in self._parcels.take(data):
                if self._token is None:
                    self._token = payload.decode("utf-8", "replace")
                else:
                    task = asyncio.create_task(self._answer(number, payload))
                    self._answering.add(task)
                    task.add_done_callback(self._answered)
        except ValueError:
            log.warning("local_call_too_large", limit=self._door.parcel_bytes)
            return self.hang_up()
        if len(self._answering) > CALLS_AT_ONCE and self._transport is not None:
            self._transport.pause_reading()

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._answering.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("local_call_broke", exc_info=error)
            self.hang_up()
        elif len(self._answering) == CALLS_AT_ONCE and self._transport is not None:
            self._transport.resume_reading()

    async def _answer(self, number: int, payload: bytes) -> None:
        told, data = parcels.read_call(payload) if payload else ("", b"")
        correlation.enter(told)
        try:
            caller = self._caller()
            caller.needs(METHODS["SubmitJobs"])
            reply = await self._door.submit(_request(data), caller)
            answer = parcels.GOOD + reply.SerializeToString()
        except CorralError as error:
            refused(error, "SubmitJobs")
            answer = parcels.BAD + json.dumps(error.view()).encode()
        if self._transport is not None:
            self._transport.write(parcels.parcel(number, answer))
            if self._transport.get_write_buffer_size() > UNREAD_BYTES:
                self.hang_up()

    def _caller(self) -> Caller:
        if not self._token:
            raise Unauthorized("A token is needed.")
        return self._door.access.caller(self._token)


def _request(data: bytes) -> pb.SubmitJobsRequest:
    with contextlib.suppress(DecodeError):
        return pb.SubmitJobsRequest.FromString(data)
    raise InvalidRequest("This is no SubmitJobsRequest; see corral.proto.")
