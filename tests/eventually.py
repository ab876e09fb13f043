"""Waiting for what another process or thread does and nothing announces: it is asked again and
again."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 60.0
"""Longer than anything takes on a busy machine: whoever waits so long has found a defect."""
PAUSE_S = 0.01

Answer = TypeVar("Answer")
Errors = type[Exception] | tuple[type[Exception], ...]


def eventually(
    ask: Callable[[], Answer | None],
    what: str,
    seconds: float = PATIENCE_S,
    *,
    ignoring: Errors = (),
) -> Answer:
    """The first answer that is true. `ignoring`: errors that mean "not yet"."""
    end = time.monotonic() + seconds
    while True:
        late = time.monotonic() > end
        last: object
        try:
            if last := ask():
                return last
        except ignoring as error:
            last = error
        if late:
            raise _never(what, seconds, last)
        time.sleep(PAUSE_S)


async def eventually_async(
    ask: Callable[[], object], what: str, seconds: float = PATIENCE_S, *, ignoring: Errors = ()
) -> None:
    """The same in an event loop, which goes on meanwhile; `ask` may be a coroutine function."""
    end = time.monotonic() + seconds
    while True:
        late = time.monotonic() > end
        last: object
        try:
            last = ask()
            if inspect.isawaitable(last):
                last = await last
            if last:
                return
        except ignoring as error:
            last = error
        if late:
            raise _never(what, seconds, last)
        await asyncio.sleep(PAUSE_S)


def _never(what: str, seconds: float, last: object) -> AssertionError:
    error = AssertionError(f"not within {seconds:g} s: {what} (the last answer: {last!r})")
    error.__cause__ = last if isinstance(last, Exception) else None
    return error
