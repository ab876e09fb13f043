"""What the agent asks of its system: signals to stop, an event loop, slow questions."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from corral.settings import WorkerSettings

T = TypeVar("T")


def spawns(settings: WorkerSettings) -> bool:
    """Whether job processes are started anew instead of forked."""
    return sys.platform == "win32" or settings.spawn


def on_stop(stop: Callable[[], None], interrupt: Callable[[], None]) -> None:
    """Calls `stop` when the system asks this process to end, `interrupt` at Ctrl-C."""
    loop = asyncio.get_running_loop()
    if sys.platform == "win32":
        signal.signal(signal.SIGBREAK, lambda *_: loop.call_soon_threadsafe(stop))
        signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(interrupt))
    else:
        loop.add_signal_handler(signal.SIGTERM, stop)
        loop.add_signal_handler(signal.SIGINT, interrupt)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def own_processor() -> Callable[[], int]:
    """Asks which processor the calling thread is on; -1 where that cannot be told."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            return ctypes.CDLL(None).sched_getcpu
    return lambda: -1


def beside(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Work in a daemon thread. A driver or a network disk may keep it for ever, and asyncio would
    wait for a thread of its own when the process ends."""
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
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *told)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def scopes_signals() -> bool:
    """Whether signals of a confined process reach nothing but what it started."""
    if sys.platform == "win32":
        return False
    from corral.runtime.sandbox import rules

    return rules.landlock_version() >= rules.SCOPES_SINCE
