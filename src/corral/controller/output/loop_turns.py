"""Turns of the event loop: of those who all have something to do, one begins in each."""

from __future__ import annotations

import asyncio
from collections import deque


class LoopTurns:
    """However many want one, everybody else waits for no more than a single stretch of theirs."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False

    async def take(self) -> None:
        """Returns at once where nobody else has begun in this turn of the loop."""
        loop = asyncio.get_running_loop()
        if self._taken:
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._taken = True
            loop.call_soon(self._pass_on)

    def _pass_on(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # whoever waited may have gone away
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._pass_on)
                return
        self._taken = False
