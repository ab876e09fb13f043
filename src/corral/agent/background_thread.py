"""Work in a thread that nobody has to wait for, not even the end of the process: a driver or a
network disk may keep it for ever."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def beside(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Its result, whenever that comes. (asyncio's own threads are waited for at the end.)"""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_it: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            set_it(value)

    def run() -> None:
        try:
            found = work()
        except Exception as error:
            told: tuple[Callable[[Any], None], Any] = future.set_exception, error
        else:
            told = future.set_result, found
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *told)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
