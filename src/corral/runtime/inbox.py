"""Lines from the agent, read without a thread.

A thread in the job process would make every fork of a job a fork of a threaded process. Between
attempts the job process waits here; during one it looks here only when the job asks whether it is
cancelled.
"""

from __future__ import annotations

import json
import os
from collections import deque

from corral.runtime import posix

READ = 1 << 18
CANCEL_LINE = 256


class Inbox:
    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._lines: deque[bytes] = deque()
        self._partial: list[bytes] = []

    def next(self) -> bytes | None:
        """The next line, waited for; None when the agent is gone."""
        while not self._lines:
            if not self._read():
                return None
        return self._lines.popleft()

    def cancel_came(self, job: str, attempt: int) -> bool:
        """Whether the agent cancelled this attempt; orders that came meanwhile stay in line."""
        while posix.readable(self.fd):
            if not self._read():
                break
        for line in self._lines:
            if len(line) < CANCEL_LINE and b'"cancel"' in line:
                order = json.loads(line)
                if order.get("cancel") and (
                    "job" not in order or (order["job"], order.get("attempt")) == (job, attempt)
                ):
                    self._lines.remove(line)
                    return True
        return False

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
