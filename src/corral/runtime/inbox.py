"""Lines from the agent, read without a thread.

A thread in the job process would make every fork of a job a fork of a threaded process. Between
attempts the job process waits here; during one it looks here only when the job asks whether it is
cancelled.
"""

from __future__ import annotations

import json
import os
import select
from _thread import allocate_lock
from collections import deque

READ = 1 << 18
CANCEL_LINE = 256
LOCK_S = 0.1
"""Longer than any thread looks. Only between attempts is the lock held for good."""


class Inbox:
    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._lines: deque[bytes] = deque()
        self._partial: list[bytes] = []
        # Several threads of a job may ask at once; and one that outlived its attempt must not
        # take from here what the next attempt is waited for with.
        self._lock = allocate_lock()

    def next(self) -> bytes | None:
        """The next line, waited for; None when the agent is gone."""
        with self._lock:
            while not self._lines:
                if not self._read():
                    return None
            return self._lines.popleft()

    def cancel_came(self, job: str = "", attempt: int = 0) -> bool:
        """Whether the agent cancelled this attempt (without a name: the one that runs); orders
        that came meanwhile stay in line."""
        if not self._lock.acquire(timeout=LOCK_S):
            return False
        try:
            while self._poll.poll(0) and self._read():
                continue
            for line in self._lines:
                if len(line) < CANCEL_LINE and _cancels(json.loads(line), job, attempt):
                    self._lines.remove(line)
                    return True
            return False
        finally:
            self._lock.release()

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


def _cancels(order: dict[str, object], job: str, attempt: int) -> bool:
    """A cancel that names no attempt means the one that runs."""
    if not order.get("cancel"):
        return False
    return "job" not in order or (order["job"], order.get("attempt")) == (job, attempt)
