"""What the agent asks of its system, in one place for both kinds: how runners are started, how it
is told to stop, and which event loop it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from corral.settings import WorkerSettings


def spawns(settings: WorkerSettings) -> bool:
    """Whether job processes are started anew instead of forked."""
    return sys.platform == "win32" or settings.spawn


def apart() -> dict[str, Any]:
    """How a process is started that Ctrl-C in our terminal does not concern."""
    if sys.platform == "win32":
        # A console of its own that nobody sees: Ctrl-Break reaches what shares a console.
        flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
        return {"creationflags": flags}
    return {"start_new_session": True}


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


def close_to_others() -> None:
    """Jobs run as the same user; from here on they cannot look into this process."""
    if sys.platform != "win32":
        from corral.runtime.process import posix

        posix.close_to_others()


def scopes_signals() -> bool:
    """Whether signals of a confined process reach nothing but what it started."""
    if sys.platform == "win32":
        return False
    from corral.runtime.sandbox import rules

    return rules.landlock_version() >= rules.SCOPES_SINCE


def own_folders(home: str, temporary: str) -> dict[str, str]:
    """Variables that name a process's home and where it puts what it does not keep."""
    if sys.platform == "win32":
        return {"USERPROFILE": home, "HOME": home, **temporary_folder(temporary)}
    return {"HOME": home, **temporary_folder(temporary)}


def temporary_folder(path: str) -> dict[str, str]:
    names = ("TEMP", "TMP") if sys.platform == "win32" else ("TMPDIR",)
    return dict.fromkeys(names, path)
