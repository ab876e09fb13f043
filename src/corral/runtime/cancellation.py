"""How a cancel reaches the code that runs: a flag, an exception, or a cancelled task.

A function that asks `job.cancelled()` ends by itself. Any other gets `job.Cancelled` raised where
it stands, once; a coroutine is cancelled the way asyncio does it.

SIGTERM does all that, whoever sent it; on Windows, which has none, the supervisor's word. But only
the agent's line, which it writes before it signals, makes an attempt a cancelled one: a job may
send SIGTERM to itself.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from mmap import mmap
from typing import TYPE_CHECKING

from corral import job
from corral.runtime.channels.frames import CANCEL

if TYPE_CHECKING:
    from corral.runtime.attempt_loop import InboxPort

if sys.platform == "win32":
    STOP = signal.SIGINT
    """The only one that wakes a main thread which sleeps."""
else:
    STOP = signal.SIGTERM


class Cancellation:
    def __init__(self, inbox: InboxPort, page: mmap | bytearray) -> None:
        self._inbox = inbox
        self._page = page
        self._name = ("", 0)
        self.state = job._begin(lambda: False)
        self.interruptible = False
        """The attempt is fetching or in user code, where an exception ends it properly."""
        self.signalled = False
        self.stop_task: Callable[[], object] | None = None
        self._raised = False
        self._mask: set[signal.Signals | int] = set()
        signal.signal(STOP, self._signal)
        if sys.platform != "win32":
            signal.signal(signal.SIGINT, signal.default_int_handler)
            # What a job forks is a plain process: Process.terminate() must end it. The signal is
            # held back around the fork, or one that comes early would meet our handler and be lost.
            os.register_at_fork(
                before=self._hold, after_in_parent=self._release, after_in_child=self._forget
            )

    def begin(self, name: str, attempt: int) -> None:
        self._name = (name, attempt)
        self.state = job._begin(self.look)
        self.signalled = self._raised = False
        self.stop_task = None
        self._page[CANCEL] = 0

    def look(self) -> bool:
        """Whether the job should end, by signal or by line."""
        return self.signalled or self.told()

    def told(self) -> bool:
        """Whether the agent's line came. The page keeps it for the supervisor, which cannot see
        what this process has read."""
        if not self._page[CANCEL] and self._inbox.cancel_came(*self._name):
            self._page[CANCEL] = 1
        return bool(self._page[CANCEL])

    @property
    def asked(self) -> bool:
        """Somebody cancelled, and the job could know."""
        return (self.signalled or self.state.cancelled) and self.told()

    def _signal(self, *_: object) -> None:
        self.signalled = True
        self.state.cancelled = True
        if not self.interruptible or self._raised or self.state.asks:
            return
        self._raised = True
        if self.stop_task is not None:
            self.stop_task()
            return
        raise job.Cancelled("The job was cancelled.")

    if sys.platform != "win32":

        def _hold(self) -> None:
            self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, (STOP,))

        def _release(self) -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

        def _forget(self) -> None:
            self.interruptible = False
            if signal.getsignal(STOP) == self._signal:
                signal.signal(STOP, signal.SIG_DFL)
            self._release()
