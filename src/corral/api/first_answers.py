"""What answers in the first moments: `/health` and the workers' socket.

REST comes when it is first asked for, or soon after the start: to load it takes as long as all the
rest of a controller, and after a crash work should go on before that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from corral.api.workers.worker_socket import WorkerSocket
from corral.controller.output.loop_turns import LoopTurns
from corral.core.errors import Unavailable

Health = Callable[[], Awaitable[tuple[int, dict[str, object]]]]
"""The status and what to say with it."""


STOPPING = Unavailable("The controller is stopping. Ask again soon.")

T = TypeVar("T")


class Once(Generic[T]):
    """What takes a while to make: made in a thread when somebody first asks, for all who do."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._making: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        if self._making is None:
            self._making = asyncio.create_task(asyncio.to_thread(self._make))
        try:
            return await asyncio.shield(self._making)
        except Exception:
            self._making = None  # no file descriptor left, for one: the next caller tries again
            raise


class FirstAnswers:
    def __init__(
        self,
        workers: WorkerSocket | None,
        health: Health,
        load: Callable[[], ASGIApp],
        turns: LoopTurns,
    ) -> None:
        self._workers, self._health = workers, health
        self._turns = turns
        """Everything else takes a turn: however many come at once, these two answer."""
        self.loaded = Once(load)
        """REST."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind, path = scope["type"], scope.get("path")
        if kind == "websocket" and path == "/worker" and self._workers is not None:
            await self._workers.serve(WebSocket(scope, receive, send))
        elif kind == "http" and path == "/health" and scope["method"] == "GET":
            status, body = await self._health()
            await JSONResponse(body, status)(scope, receive, send)
        else:
            try:
                rest = await self.loaded()
            except asyncio.CancelledError:  # the controller is stopping, before it came so far
                if kind == "websocket":
                    close = {"type": "websocket.close", "code": 1001, "reason": STOPPING.message}
                    return await send(close)
                stopping = JSONResponse(STOPPING.view(), STOPPING.status)
                return await stopping(scope, receive, send)
            await self._turns.take()
            await rest(scope, self._one_at_a_time(receive), send)

    def _one_at_a_time(self, receive: Receive) -> Receive:
        """Thousands of streams may end at once: each is cleared away in a turn of its own."""

        async def received() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                await self._turns.take()
            return message

        return received
