"""Words from the agent, read without a thread: orders to run, and cancels.

A thread in the job process would make every fork of a job a fork of a threaded process. Between
attempts the job process waits here for the next order; during one it looks for a cancel, only when
the job asks whether it is cancelled. The two come by different ways, so that looking for a cancel
never takes an order: what is not taken the agent may still give to somebody else.
"""

from __future__ import annotations

import os
import select
import sys
from _thread import allocate_lock

from corral.runtime.process import posix

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself would be waited for by every start of a runner
    import subprocess
    from typing import Any

    from corral.runtime.cancellation import Cancellation
    from corral.runtime.order import Cancel

assert sys.platform != "win32"

READ = 40 * 1024
"""More than one packet of orders has."""
POLL_S = 0.05
KEPT = 64
"""Cancels of other attempts: most came too late for the one they meant, one may be early."""
LOCK_S = 0.1
"""Longer than any thread looks. Only between attempts is the lock held for good."""


class Inbox:
    def __init__(self, fd: int, orders: int = -1) -> None:
        self.fd = fd
        self._orders = orders
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._lines: list[bytes] = []
        self._partial: list[bytes] = []
        # Several threads of a job may ask at once; and one that outlived its attempt must not
        # look while the next one is waited for.
        self._lock = allocate_lock()

    def pass_on(self) -> dict[str, Any]:
        """What another program needs to go on reading here, once this process executes it."""
        for fd in (self.fd, self._orders):
            os.set_inheritable(fd, True)
        unread = [line.decode() for line in self._lines]
        partial = b"".join(self._partial).decode("latin-1")
        return {"fds": (self.fd, self._orders), "unread": unread, "partial": partial}

    @classmethod
    def taken_over(cls, told: dict[str, Any]) -> Inbox:
        for fd in told["fds"]:
            os.set_inheritable(fd, False)
        inbox = cls(*told["fds"])
        inbox._lines += [line.encode() for line in told["unread"]]
        inbox._partial += [told["partial"].encode("latin-1")]
        return inbox

    def first(self) -> bytes | None:
        """The agent's first line, waited for; None when it is gone."""
        while not self._lines:
            if not self._read():
                return None
        return self._lines.pop(0)

    def next(self) -> bytes | None:
        """The next order, waited for; None when the agent is gone."""
        with self._lock:
            order = os.read(self._orders, READ)
            while order and not order.endswith(b"\n"):
                more = os.read(self._orders, READ)
                order = order + more if more else b""
            return order or None

    def cancel_came(self, job: str = "", attempt: int = 0) -> bool:
        """Whether the agent cancelled this attempt, or any if it has no name."""
        if not self._lock.acquire(timeout=LOCK_S):
            return False
        try:
            while self._poll.poll(0) and self._read():
                continue
            for line in self._lines:
                from corral.runtime.channels.frames import decode  # not to start a supervisor

                cancel: Cancel = decode(line)
                if not job or (cancel["job"], cancel["attempt"]) == (job, attempt):
                    self._lines.remove(line)
                    return True
            del self._lines[:-KEPT]
            return False
        finally:
            self._lock.release()

    def wait_for(self, process: subprocess.Popen[bytes], cancellation: Cancellation) -> bool:
        """Wait for a script and read the agent's lines meanwhile; whether a cancel came. SIGTERM
        is not passed on: whoever ends a script signals its whole tree."""
        ended = posix.exit_fd(process.pid)
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        if ended is not None:
            poll.register(ended, select.POLLIN)
        while process.poll() is None:
            for fd, event in poll.poll(None if ended is not None else POLL_S * 1000):
                if fd == self.fd:
                    cancellation.told()
                    if event & select.POLLHUP:  # The agent is gone; the supervisor ends us all.
                        poll.unregister(self.fd)
        if ended is not None:
            os.close(ended)
        return cancellation.told()

    def _read(self) -> bool:
        data = os.read(self.fd, READ)
        if not data:
            return False
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = b"".join([*self._partial, whole[0]])
            self._partial.clear()
            self._lines.extend(line for line in whole if line)
        if rest:
            self._partial.append(rest)
        return True
