"""The one thread that writes the journal, and how the event loop hears from it.

Plainer than an executor: a commit of a few hundred microseconds should not spend a fifth of that
on futures and locks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

Then = Callable[[Any, Exception | None], None]
"""Called in the event loop with what the work returned, or with what it raised."""


class WriterThread:
    def __init__(self) -> None:
        self._todo: SimpleQueue[tuple[Callable[[], Any], Callable[..., Any], Then] | None]
        self._todo = SimpleQueue()
        self._thread: Thread | None = None
        self._lock = Lock()
        """Held while something is written."""

    def run(self, work: Callable[[], Any], then: Then) -> None:
        if self._thread is None and not self._begin():
            return self.run_here(work, then)
        self._todo.put((work, asyncio.get_running_loop().call_soon_threadsafe, then))

    def _begin(self) -> bool:
        thread = Thread(target=self._work, name="journal", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no memory for one, or the system allows no more of them
            return False
        self._thread = thread
        return True

    def run_here(self, work: Callable[[], Any], then: Then) -> None:
        """The same in the caller's thread, if the other one is idle."""
        if not self._lock.acquire(blocking=False):
            return self.run(work, then)
        try:
            result, failed = work(), None
        except Exception as error:
            result, failed = None, error
        finally:
            self._lock.release()
        then(result, failed)

    def _work(self) -> None:
        while (task := self._todo.get()) is not None:
            work, call, then = task
            try:
                with self._lock:
                    result = work()
            except Exception as error:
                call(then, None, error)
            else:
                call(then, result, None)

    def close(self) -> None:
        """Waits for what was asked for."""
        if self._thread is not None:
            self._todo.put(None)
            self._thread.join()
            self._thread = None
