"""The WebSocket of an agent: heard where its frames arrive, and given up when nothing comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from websockets.asyncio.client import ClientConnection
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import Event, State

CLOSE_S = 1.0
QUIET_LOOKS = 2
"""So many pings in a row may stay without an answer, or anything else."""


class AgentSocket(ClientConnection):
    """A WebSocket whose frames are heard where they arrive: waking a task for each of them costs
    more than most of them say."""

    heard: Callable[[bytes], None] | None = None
    drained: Callable[[], None] | None = None
    _is_quiet = False
    """Nothing came since the last look."""

    @property
    def writable(self) -> bool:
        return self.state is State.OPEN and not self.paused

    def data_received(self, data: bytes) -> None:
        self._is_quiet = False
        super().data_received(data)

    async def keepalive(self) -> None:
        """A controller that reads nothing for now, because its disk is full, answers no ping; but
        it says something. One from which nothing comes is out of reach."""
        assert self.ping_interval is not None
        quiet = 0
        while quiet < QUIET_LOOKS:
            self._is_quiet = True
            if self.writable:
                await self.ping()
            await asyncio.sleep(self.ping_interval)
            quiet = quiet + 1 if self._is_quiet else 0
        self.protocol.fail(CloseCode.INTERNAL_ERROR, "nothing came from the controller")
        self.transport.abort()

    def process_event(self, event: Event) -> None:
        if (
            self.heard is not None
            and isinstance(event, Frame)
            and event.opcode is Opcode.BINARY
            and event.fin
        ):
            self.heard(bytes(event.data))
        else:
            super().process_event(event)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.drained is not None:
            self.drained()


async def hang_up(socket: ClientConnection) -> None:
    """Close; without waiting for a controller that no longer reads."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await socket.close()
    except TimeoutError:
        socket.transport.abort()
