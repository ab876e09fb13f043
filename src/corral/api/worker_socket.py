"""The WebSocket at `/worker`: who may open it, and its frames to and from the agents engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog
from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect, WebSocketState

from corral.api.auth import bearer
from corral.controller.tokens import same
from corral.core.errors import Unauthorized
from corral.engines.agents import AgentsEngine
from corral.protocol import messages as wire

log = structlog.get_logger()

FRAME_BYTES = 512 * 1024
"""A frame is closed once it holds this much, so that one does not hold up the next for long."""
REGISTER_WITHIN_S = 10.0
SILENT_BEATS = 3
"""A worker that misses this many heartbeats counts as disconnected; its grace begins."""


class _Session:
    """Messages queued in one turn of the event loop leave together."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._outbox: list[wire.FromController] = []
        self._filled = asyncio.Event()
        self._closing: tuple[int, str] | None = None

    def send(self, message: wire.FromController) -> None:
        self._outbox.append(message)
        self._filled.set()

    def close(self, code: int, reason: str) -> None:
        self._closing = (code, reason)
        self._filled.set()

    async def pump(self) -> None:
        while True:
            await self._filled.wait()
            self._filled.clear()
            outbox, self._outbox = self._outbox, []
            parts: list[bytes] = []
            size = 0
            for message in outbox:
                encoded = wire.encode(message)
                parts.append(encoded)
                size += len(encoded)
                if size >= FRAME_BYTES:
                    await self._socket.send_bytes(b"[" + b",".join(parts) + b"]")
                    parts, size = [], 0
            if parts:
                await self._socket.send_bytes(b"[" + b",".join(parts) + b"]")
            if self._closing is not None:
                await self._socket.close(*self._closing)
                return


class WorkerSocket:
    def __init__(
        self,
        engine: AgentsEngine,
        credential_of: Callable[[str], str | None],
        *,
        heartbeat_s: float,
        grace_s: float,
        url: Callable[[], str],
    ) -> None:
        self._engine, self._credential_of, self._url = engine, credential_of, url
        self._heartbeat_s, self._grace_s = heartbeat_s, grace_s

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
        session = _Session(socket)
        session.send(
            wire.WorkerWelcome(
                name=register.name or register.worker_id,
                heartbeat_s=self._heartbeat_s,
                grace_s=self._grace_s,
                url=self._url(),
            )
        )
        worker = self._engine.join(session, register)
        pump = asyncio.create_task(session.pump())
        try:
            await self._listen(socket, worker.id)
        finally:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)
            self._engine.leave(session, worker.id)

    async def _listen(self, socket: WebSocket, worker: str) -> None:
        patience_s = SILENT_BEATS * self._heartbeat_s
        silence = _Silence(patience_s)
        try:
            async with asyncio.timeout(patience_s) as timeout:
                silence.watch(timeout)
                await self._hear_frames(socket, worker, silence)
        except TimeoutError:
            log.warning("worker_silent", worker=worker)
        finally:
            silence.stop()

    async def _hear_frames(self, socket: WebSocket, worker: str, silence: _Silence) -> None:
        while True:
            try:
                frame = await _frame(socket)
                silence.broken = True
                heard = wire.decode_from_worker(frame)
            except WebSocketDisconnect:
                return
            except msgspec.DecodeError as error:
                log.warning("worker_malformed", worker=worker, error=str(error))
                if socket.application_state is WebSocketState.CONNECTED:
                    await socket.close(
                        wire.CLOSE_MALFORMED, f"Not a frame of messages: {error}"[:120]
                    )
                return
            await self._engine.hear(worker, heard)

    async def _register(self, socket: WebSocket) -> wire.WorkerRegister:
        try:
            credential = bearer(socket.headers.get("authorization"))
        except Unauthorized as error:
            raise _Refused(wire.CLOSE_UNAUTHORIZED, error.message) from None
        async with asyncio.timeout(REGISTER_WITHIN_S):
            frame = await _frame(socket)
        try:
            first = wire.decode_from_worker(frame)
        except msgspec.DecodeError as error:
            raise _Refused(wire.CLOSE_MALFORMED, f"Not a frame of messages: {error}") from None
        if len(first) != 1 or not isinstance(first[0], wire.WorkerRegister):
            raise _Refused(wire.CLOSE_MALFORMED, "The first message must be WorkerRegister.")
        register = first[0]
        if register.runner_protocol not in wire.COMPATIBLE:
            raise _Refused(
                wire.CLOSE_INCOMPATIBLE,
                f"Protocol {register.runner_protocol!r} is not one of {sorted(wire.COMPATIBLE)}.",
            )
        expected = self._credential_of(register.worker_id)
        if expected is None or not same(credential, expected):
            raise _Refused(wire.CLOSE_UNAUTHORIZED, "This credential is not that worker's.")
        return register


class _Silence:
    """Moves one deadline on for as long as something is heard: a timer now and then, and none for
    each frame."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._timer: asyncio.TimerHandle | None = None
        self.broken = False

    def watch(self, timeout: asyncio.Timeout) -> None:
        loop = asyncio.get_running_loop()
        if self.broken:
            self.broken = False
            timeout.reschedule(loop.time() + self._patience_s)
        self._timer = loop.call_later(self._patience_s / SILENT_BEATS, self.watch, timeout)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class _Refused(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason[:120]


async def _frame(socket: WebSocket) -> bytes:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1005))
    data = message.get("bytes")
    return data if data is not None else str(message.get("text", "")).encode()
