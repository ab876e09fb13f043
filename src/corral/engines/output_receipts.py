"""Which output is written down, told to workers now and then: one message for many attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from corral.core.job import JobId
from corral.protocol.messages import OutputReceived

Key = tuple[JobId, int]

RECEIPT_S = 0.1
RECEIPT_BYTES = 1 << 20


class OutputReceipts:
    def __init__(self, send: Callable[[str, OutputReceived], None]) -> None:
        self._send = send
        self._upto: dict[str, dict[Key, int]] = {}
        """By worker: what it does not know yet."""
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def note(self, worker: str, key: Key, upto: int) -> None:
        known = self._upto.setdefault(worker, {})
        known[key] = max(upto, known.get(key, 0))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(RECEIPT_S, self.flush)

    def taken(self, size: int) -> None:
        """So much was noted by now: workers need not keep much more than this."""
        self._bytes += size
        if self._bytes >= RECEIPT_BYTES:
            self.flush()

    def drop(self, worker: str, key: Key) -> None:
        """That its end was received says all."""
        if worker in self._upto:
            self._upto[worker].pop(key, None)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        told, self._upto, self._bytes = self._upto, {}, 0
        for worker, upto in told.items():
            if upto:
                numbers = tuple((job, attempt, n) for (job, attempt), n in upto.items())
                self._send(worker, OutputReceived(numbers))
