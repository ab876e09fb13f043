"""The local door: submissions of programs on the controller's own machine, over a socket in its
home. The same words and the same checks as on gRPC, at a fifth of what a gRPC call costs.

A job can connect, too: until it has shown a token, a caller gets a few bytes and a moment. See
decision 0024.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import select
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import structlog
from google.protobuf.message import DecodeError

from corral import correlation
from corral.api.correlation import refused
from corral.api.roles import METHODS
from corral.contract import corral_pb2 as pb
from corral.controller.auth.tokens import Access
from corral.core.access import Caller
from corral.core.errors import CorralError, InvalidRequest, Unauthorized
from corral.core.limits import InputLimits
from corral.protocol import parcels

log = structlog.get_logger()

LONGEST_PATH = 100
"""Bytes that a socket's path may have on every system; a deeper home has only the gRPC door."""
CALLS_AT_ONCE = 1024
UNREAD_BYTES = 32 << 20
BACKLOG = 128
ACCEPTS_PER_TURN = 16
"""New sockets between two looks at everything else: however many come, the rest goes on."""
ACCEPT_AGAIN_S = 1.0
STRANGERS, TOKEN_BYTES = 64, 1024
"""How many may be here who have not shown a token yet, and how long a token is at most."""
SO_PEERPIDFD = 77
"""Since Linux 6.5; Python has no name for it."""
_CREDENTIALS = struct.Struct("3i")

Submit = Callable[[pb.SubmitJobsRequest, Caller], Awaitable[pb.SubmitJobsReply]]


class LocalDoor:
    def __init__(
        self, submit: Submit, access: Access, limits: InputLimits, connections: int
    ) -> None:
        self.submit, self.access = submit, access
        self.parcel_bytes, self.token_within_s = limits.message_bytes, limits.header_s
        self.held_bytes = 0
        """Of calls that are not whole or not answered yet."""
        self.most_bytes = 2 * limits.message_bytes
        self._connections = connections
        self._listening: socket.socket | None = None
        self._tell_jobs = not _is_confined("self")
        self.strangers: dict[_Visitor, None] = {}
        """Those without a token so far, the oldest first."""
        self._open: set[_Visitor] = set()
        self._greeting: set[asyncio.Task[None]] = set()

    async def open(self, path: Path) -> None:
        if sys.platform == "win32" or len(os.fsencode(path)) > LONGEST_PATH:
            return
        path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.setblocking(False)
        before = os.umask(0o177)
        try:
            listening.bind(str(path))
        finally:
            os.umask(before)
        listening.listen(BACKLOG)
        self._listening = listening
        self._listen()

    def _listen(self) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        """Not an event loop's own server: that would take all that wait at once, before anybody
        counts them, and try for ever where file descriptors are used up."""
        assert self._listening is not None
        loop = asyncio.get_running_loop()
        for _ in range(ACCEPTS_PER_TURN):
            try:
                line, _ = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                log.warning("local_door_shut", error=error.strerror, again_s=ACCEPT_AGAIN_S)
                loop.remove_reader(self._listening)
                loop.call_later(ACCEPT_AGAIN_S, self._listen)
                return
            if not _is_own_program(line, tell_jobs=self._tell_jobs) or not self._make_room():
                line.close()  # who has a token calls over gRPC then
                continue
            line.setblocking(False)
            visitor = _Visitor(self)
            self._open.add(visitor)
            self.strangers[visitor] = None
            task = asyncio.create_task(self._greet(visitor, line))
            self._greeting.add(task)
            task.add_done_callback(self._greeting.discard)

    def _make_room(self) -> bool:
        """Those with a token come first, then those who may be about to show one."""
        crowded = len(self.strangers) >= STRANGERS or len(self._open) >= self._connections
        if crowded and self.strangers:
            next(iter(self.strangers)).hang_up()
        return len(self._open) < self._connections

    async def _greet(self, visitor: _Visitor, line: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: visitor, line)
        except OSError:
            line.close()
            self.forget(visitor)

    def forget(self, visitor: _Visitor) -> None:
        self._open.discard(visitor)
        self.strangers.pop(visitor, None)

    async def close(self, path: Path) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
            self._listening = None
            path.unlink(missing_ok=True)
        for visitor in list(self._open):
            visitor.hang_up()


class _Visitor(asyncio.Protocol):
    """One program's socket; any number of calls may be on their way."""

    def __init__(self, door: LocalDoor) -> None:
        self._door = door
        self._parcels = parcels.Parcels(TOKEN_BYTES)
        self._transport: asyncio.Transport | None = None
        self._token = ""
        self._gone = self._paused = False
        self._answering: dict[asyncio.Task[None], int] = {}
        self._introduction = asyncio.get_running_loop().call_later(
            door.token_within_s, self.hang_up
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._gone:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.hang_up()
        self._transport = None
        self._door.held_bytes -= self._parcels.waiting
        self._parcels.clear()

    def hang_up(self) -> None:
        self._gone = True
        self._introduction.cancel()
        self._door.forget(self)
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._gone:
            return
        waited = self._parcels.waiting
        try:
            for number, payload in self._parcels.take(data):
                if self._token:
                    self._call(number, payload)
                else:
                    self._introduce(payload)
        except Unauthorized:
            self.hang_up()  # over gRPC, where it goes next, it hears what is wrong with its token
        except ValueError:
            if self._token:
                log.warning("local_call_too_large", limit=self._door.parcel_bytes)
            self.hang_up()
        self._door.held_bytes += self._parcels.waiting - waited
        self._slow_down()

    def _introduce(self, payload: bytes) -> None:
        token = payload.decode("utf-8", "replace")
        self._door.access.caller(token)
        self._token = token
        self._introduction.cancel()
        self._door.strangers.pop(self, None)
        self._parcels.limit = self._door.parcel_bytes

    def _call(self, number: int, payload: bytes) -> None:
        task = asyncio.create_task(self._answer(number, payload))
        self._answering[task] = len(payload)
        self._door.held_bytes += len(payload)
        task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._door.held_bytes -= self._answering.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("local_call_broke", exc_info=error)
            self.hang_up()
        elif self._paused:
            self._slow_down()

    def _slow_down(self) -> None:
        """Reads on once calls were answered. Where none is under way and others hold all the room,
        it is hung up on: halves of calls must not wait for each other."""
        if self._transport is None or self._gone:
            return
        full = self._door.held_bytes > self._door.most_bytes
        if full and not self._answering:
            log.warning("local_calls_too_large", limit=self._door.most_bytes)
            return self.hang_up()
        pause = full or len(self._answering) > CALLS_AT_ONCE
        if pause is not self._paused:
            self._paused = pause
            (self._transport.pause_reading if pause else self._transport.resume_reading)()

    async def _answer(self, number: int, payload: bytes) -> None:
        told, data = parcels.read_call(payload) if payload else ("", b"")
        correlation.enter(told)
        try:
            caller = self._door.access.caller(self._token)  # it may have been revoked meanwhile
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


def _request(data: bytes) -> pb.SubmitJobsRequest:
    with contextlib.suppress(DecodeError):
        return pb.SubmitJobsRequest.FromString(data)
    raise InvalidRequest("This is no SubmitJobsRequest; see corral.proto.")


# --- who is at the other end, as far as the kernel knows ---
#
# Landlock does not keep a job from connecting to a socket whose path it knows, and /proc/net/unix
# tells it every path. But each process of a job has `no_new_privs`, and nothing takes that off
# again.


def _is_confined(pid: int | str) -> bool:
    """Whether this process may never gain privileges; also where nobody can tell."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            return b"\nNoNewPrivs:\t1\n" in file.read()
    except OSError:
        return True


def _is_own_program(line: socket.socket, *, tell_jobs: bool) -> bool:
    """Whether the owner of this process (or root) is there, and, where jobs can be told from other
    programs, no job. It is a first hurdle: what counts is the token."""
    if sys.platform == "win32":
        return False
    try:
        told = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(told)
        if uid not in (0, os.geteuid()):
            return False
        return not tell_jobs or not _is_job(line, pid)
    except OSError:
        return False


def _is_job(line: socket.socket, pid: int) -> bool:
    if sys.platform == "win32":
        return True
    try:
        pidfd = line.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise
        return _is_confined(pid)
    try:
        if _is_confined(pid):
            return True
        # One that is gone may have left its number to another, whose status that was.
        ended = select.poll()
        ended.register(pidfd, select.POLLIN)
        return bool(ended.poll(0))
    finally:
        os.close(pidfd)
