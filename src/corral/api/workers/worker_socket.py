"""The WebSocket at `/worker`: who may open it, and its frames to and from the agents engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from time import monotonic
from typing import Any

import structlog
from msgspec.structs import replace
from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request
from websockets.protocol import OPEN

from corral.api.auth import bearer
from corral.controller.auth.roster import Roster
from corral.core.errors import Unauthorized
from corral.core.malformed import MALFORMED
from corral.engines.engine import Dialled
from corral.protocol import messages as wire

log = structlog.get_logger()

FRAME_BYTES = 512 * 1024
"""A frame is closed once it holds this much, so that one does not hold up the next for long."""
SHORT_CUT = "corral.frames"
TOO_BIG, LATER = 1009, 1013
"""Codes of the WebSocket protocol itself."""
MENTION_S = 0.005
REGISTER_WITHIN_S = 10.0
LINGER_S = 1.0
HANG_UP_S = 10.0
"""How long the last word may take to reach a worker."""
MOST_UNREAD = 200_000
"""Messages that may wait for a worker to read them: all that it may hold, or claim, is less."""
STRANGERS, STRANGER_BYTES = 64, 1 << 20
"""Connections with unknown credentials at a time, and the bytes that each may send: a revoked
worker, for one, must still hear that it was revoked."""
STIR_S = 2.0
"""How often a worker of which nothing is read hears that we are there."""
SILENT_BEATS = 3
"""A worker that misses this many heartbeats counts as disconnected; its grace begins."""


class Frames(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket with a short cut. A worker's frames come and go by the thousand, and on
    the way through ASGI each one wakes a task and stops and starts the reading."""

    heard: Callable[[bytes], None] | None = None
    """Takes every whole message, once it is set; the application then hears only of the end."""
    drained: Callable[[], None] | None = None
    trusted = False
    """Whether its frames may be as large as the settings say."""
    _received = 0
    _lingers = False

    def data_received(self, data: bytes) -> None:
        if self._lingers:
            return
        if not self.trusted:
            self._received += len(data)
            if self._received > STRANGER_BYTES:
                return self._too_much()
        super().data_received(data)

    def _too_much(self) -> None:
        if self.close_sent or self.conn.state is not OPEN:
            self.transport.close()
            return
        told = f"over the limit of {STRANGER_BYTES:,} bytes for an unknown credential."
        self.conn.fail(TOO_BIG, told)
        self.handle_parser_exception()

    def handle_parser_exception(self) -> None:
        """To hang up while it still sends would make the system answer with a reset, and it would
        not read what it did wrong: so for a moment its bytes are taken, and dropped."""
        assert self.conn.close_sent is not None
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = self._lingers = True
        self.close_timer = asyncio.get_running_loop().call_later(LINGER_S, self.transport.close)

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            self.scope["extensions"][SHORT_CUT] = self  # type: ignore[assignment]

    def send_receive_event_to_app(self) -> None:
        if self.heard is None or self.close_sent:
            return super().send_receive_event_to_app()
        frames, self.frames = self.frames, []
        self.heard(frames[0] if len(frames) == 1 else b"".join(frames))

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.drained is not None:
            self.drained()

    def write(self, data: bytes) -> None:
        """Nothing, and no error, where the socket was reset: whoever sends is in the middle of
        something else, and the loss is heard as any other."""
        if self.conn.state is OPEN and not self.transport.is_closing():
            self.conn.send_binary(data)
            self.transport.write(b"".join(self.conn.data_to_send()))

    def pong(self) -> None:
        """A sign of life that nobody asked for."""
        if self.conn.state is OPEN and not self.transport.is_closing():
            self.conn.send_pong(b"")
            self.transport.write(b"".join(self.conn.data_to_send()))


class _Session:
    """The first message of a turn of the event loop leaves at once, those behind it together."""

    def __init__(self, frames: Frames, welcome: wire.WorkerWelcome) -> None:
        self._frames, self._welcome = frames, welcome
        self._loop = asyncio.get_running_loop()
        self._outbox: list[wire.FromController] = []
        self._leaving = False
        self._later: asyncio.TimerHandle | None = None
        self._stirring: asyncio.TimerHandle | None = None
        """While nothing of it is read."""
        self.over: asyncio.Future[tuple[int, str] | None] = self._loop.create_future()
        """Done when nobody wants to hear this worker now; with what to tell it, if anything."""
        frames.drained = self._leave

    def send(self, message: wire.FromController) -> None:
        self._append(message)
        if not self._leaving:
            self._leave()
            self._leaving = True
            self._loop.call_soon(self._leave)

    def mention(self, message: wire.FromController) -> None:
        self._append(message)
        if self._later is None:
            self._later = self._loop.call_later(MENTION_S, self._leave)

    def _append(self, message: wire.FromController) -> None:
        """A worker that goes on sending and never reads loses its socket, and what waits for it."""
        self._outbox.append(message)
        if len(self._outbox) > MOST_UNREAD:
            log.warning("worker_reads_nothing", unread=len(self._outbox))
            self._outbox.clear()
            self._frames.transport.abort()

    def _leave(self) -> None:
        self._leaving = False
        if self._later is not None:
            self._later.cancel()
            self._later = None
        while self._outbox and self._frames.writable.is_set():
            parts: list[bytes] = []
            size = 0
            for message in self._outbox:
                parts.append(wire.encode(message))
                size += len(parts[-1])
                if size >= FRAME_BYTES:
                    break
            del self._outbox[: len(parts)]
            self._frames.write(b"[" + b",".join(parts) + b"]")

    def rename(self, name: str) -> None:
        self._welcome = replace(self._welcome, name=name)
        self.send(self._welcome)

    def close(self, code: int, reason: str) -> None:
        self._leave()
        self.end((code, reason))

    def hang_up(self) -> None:
        """The closing frame would wait for ever on a socket that nobody reads."""
        self._loop.call_later(HANG_UP_S, self._frames.transport.abort)

    def end(self, told: tuple[int, str] | None) -> None:
        if not self.over.done():
            self.over.set_result(told)

    def listen(self, heard: Callable[[bytes], None]) -> None:
        self._frames.heard = heard

    def pause(self) -> None:
        if not self._frames.transport.is_closing():
            self._frames.transport.pause_reading()
            if self._stirring is None:
                self._stirring = self._loop.call_later(STIR_S, self._stir)

    def resume(self) -> None:
        if self._stirring is not None:
            self._stirring.cancel()
            self._stirring = None
        if not self._frames.transport.is_closing():
            self._frames.transport.resume_reading()

    def is_paused(self) -> bool:
        return self._stirring is not None

    def _stir(self) -> None:
        """Its pings are not read, and it shall not take us for dead."""
        self._frames.pong()
        self._stirring = self._loop.call_later(STIR_S, self._stir)


class WorkerSocket:
    def __init__(
        self,
        engine: Dialled,
        roster: Roster,
        *,
        heartbeat_s: float,
        grace_s: float,
        artifacts: str = "",
    ) -> None:
        self._engine, self._roster, self._artifacts = engine, roster, artifacts
        self._heartbeat_s, self._grace_s = heartbeat_s, grace_s
        self._strangers = 0

    async def serve(self, socket: WebSocket) -> None:
        await socket.accept()
        try:
            register = await self._register(socket)
        except _Refused as refused:
            log.warning("worker_refused", code=refused.code, reason=refused.reason)
            await socket.close(refused.code, refused.reason)
            return
        except (WebSocketDisconnect, TimeoutError):
            return
        welcome = wire.WorkerWelcome(
            name=self._engine.name_of(register),
            heartbeat_s=self._heartbeat_s,
            grace_s=self._grace_s,
            artifacts=self._artifacts,
            acknowledges=True,
        )
        session = _Session(socket.scope["extensions"][SHORT_CUT], welcome)
        session.send(welcome)
        worker = self._engine.join(session, register)
        silence = _Silence(self._heartbeat_s, session, worker.id)
        try:
            await self._listen(socket, session, silence, worker.id)
        finally:
            session.resume()
            self._engine.leave(session, worker.id, silent_s=silence.seconds())

    async def _listen(
        self, socket: WebSocket, session: _Session, silence: _Silence, worker: str
    ) -> None:
        """Until either side hangs up, or the worker falls silent."""

        def heard(frame: bytes) -> None:
            silence.since = monotonic()
            try:
                messages = wire.decode_from_worker(frame)
            except MALFORMED as error:
                log.warning("worker_malformed", worker=worker, error=str(error))
                session.end((wire.CLOSE_MALFORMED, _short(f"Not a frame of messages: {error}.")))
            else:
                self._engine.hear(worker, messages, len(frame))
                if any(isinstance(message, wire.WorkerGoodbye) for message in messages):
                    session.hang_up()  # where it does not do so itself

        session.listen(heard)
        gone = asyncio.ensure_future(_hung_up(socket))
        try:
            ends: set[asyncio.Future[Any]] = {gone, session.over}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            session.hang_up()
            if session.over.done() and (told := session.over.result()) is not None:
                await socket.close(*told)
        finally:
            gone.cancel()
            silence.stop()

    async def _first_frame(self, socket: WebSocket, credential: str) -> bytes:
        """What it says first; little is kept of somebody who may be anybody."""
        stranger = not self._roster.recognises(credential)
        if stranger and self._strangers >= STRANGERS:
            raise _Refused(LATER, "Too many with unknown credentials are asking. Come back later.")
        self._strangers += stranger
        socket.scope["extensions"][SHORT_CUT].trusted = not stranger
        try:
            async with asyncio.timeout(REGISTER_WITHIN_S):
                return await _frame(socket)
        finally:
            self._strangers -= stranger

    async def _register(self, socket: WebSocket) -> wire.WorkerRegister:
        try:
            credential = bearer(socket.headers.get("authorization"))
        except Unauthorized as error:
            raise _Refused(wire.CLOSE_UNAUTHORIZED, error.message) from None
        frame = await self._first_frame(socket, credential)
        try:
            for hello in wire.decode_hello(frame)[:1]:
                if hello.runner_protocol:  # the rest may be nothing that we could read
                    _check_version(hello.runner_protocol)
            first = wire.decode_from_worker(frame)
        except MALFORMED as error:
            raise _Refused(wire.CLOSE_MALFORMED, f"Not a frame of messages: {error}.") from None
        if len(first) != 1 or not isinstance(first[0], wire.WorkerRegister):
            raise _Refused(wire.CLOSE_OUT_OF_ORDER, "The first message must be WorkerRegister.")
        register = first[0]
        _check_version(register.runner_protocol)
        if not self._roster.knows(register.worker_id):
            # Perhaps it was out of reach when it was revoked: then it hears of it now.
            raise _Refused(wire.CLOSE_REVOKED, "This worker is not known here. It may join again.")
        if not self._roster.is_worker(register.worker_id, credential):
            raise _Refused(wire.CLOSE_UNAUTHORIZED, "This credential is not that worker's.")
        if self._engine.stopping:
            raise _Refused(wire.CLOSE_STOPPING, "The controller is stopping. Come back soon.")
        return register


class _Silence:
    """Tells when nothing was heard for some beats, without a timer for each frame. It counts looks,
    not seconds: a controller that was stopped itself heard nobody, and must blame nobody."""

    def __init__(self, beat_s: float, session: _Session, worker: str) -> None:
        self._beat_s, self._session, self._worker = beat_s, session, worker
        self._quiet = 0
        self._looked = self.since = monotonic()
        """When the worker was last heard."""
        self._timer = asyncio.get_running_loop().call_later(beat_s, self._look)

    def seconds(self) -> float:
        """How long it has been silent by now, once it counts as silent."""
        if self._quiet < SILENT_BEATS:
            return 0.0
        return min(monotonic() - self.since, (SILENT_BEATS + 1) * self._beat_s)

    def _look(self) -> None:
        heard = self.since > self._looked or self._session.is_paused()
        self._quiet = 0 if heard else self._quiet + 1
        self._looked = monotonic()
        if self._quiet >= SILENT_BEATS:
            log.warning("worker_silent", worker=self._worker)
            self._session.end(None)
        else:
            self._timer = asyncio.get_running_loop().call_later(self._beat_s, self._look)

    def stop(self) -> None:
        self._timer.cancel()


class _Refused(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, _short(reason)


def _short(reason: str) -> str:
    """As much of it as fits into the frame that closes a connection: 123 bytes, not characters."""
    data = reason.encode("utf-8", "replace")
    return reason if len(data) <= 123 else data[:120].decode(errors="ignore") + "…"


def _check_version(version: str) -> None:
    if why := wire.refusal(version):
        raise _Refused(wire.CLOSE_INCOMPATIBLE, why)


async def _hung_up(socket: WebSocket) -> None:
    with contextlib.suppress(WebSocketDisconnect):
        await _frame(socket)


async def _frame(socket: WebSocket) -> bytes:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1005))
    data = message.get("bytes")
    return data if data is not None else str(message.get("text", "")).encode()
