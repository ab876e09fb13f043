"""Parts of a controller that nothing acknowledged depends on: one that fails begins again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

log = structlog.get_logger()

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
SETTLED_S = 300.0
"""A part that lasted so long fails for a new reason."""


async def kept_up(name: str, part: Callable[[], Awaitable[None]]) -> None:
    """Until it ends by itself: one that fails (no descriptors, no memory, a bug) begins again."""
    loop, pause_s = asyncio.get_running_loop(), FIRST_PAUSE_S
    while True:
        began = loop.time()
        try:
            return await part()
        except Exception as error:
            if loop.time() - began > SETTLED_S:
                pause_s = FIRST_PAUSE_S
            log.error("part_failed", part=name, again_in_s=pause_s, exc_info=error)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
