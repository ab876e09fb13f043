"""What attempts told and the controller has not acknowledged: kept, and sent again after every
reconnect, like results. Past the bound the oldest goes, and its numbers say what is missing.
"""

from __future__ import annotations

from collections import deque

import structlog

from corral.core.job import JobId
from corral.protocol.messages import JobOutput, JobProgress

log = structlog.get_logger("corral.agent.outbox.sent_output")

LIMIT_BYTES = 32 << 20
"""More than a socket and a busy controller have on their way: without an acknowledgement for so
long, either is stuck. Jobs wait in their own writes long before, where nothing can be sent."""

Key = tuple[JobId, int]
Told = JobOutput | JobProgress


class _Kept:
    """Of one attempt, in the order of its numbers."""

    __slots__ = ("messages", "size")

    def __init__(self) -> None:
        self.messages: deque[tuple[Told, int]] = deque()
        self.size = 0


class SentOutput:
    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        self._limit = limit
        self._attempts: dict[Key, _Kept] = {}
        self._keeping = True
        self.size = 0

    def add(self, message: Told, size: int) -> None:
        if not self._keeping:
            return
        key = (message.job, message.attempt)
        kept = self._attempts.get(key)
        if kept is None:
            kept = self._attempts[key] = _Kept()
        kept.messages.append((message, size))
        kept.size += size
        self.size += size
        if self.size > self._limit:
            self._make_room()

    def _make_room(self) -> None:
        """At the expense of the attempt that has the most here."""
        key, largest = max(self._attempts.items(), key=lambda item: item[1].size)
        before, enough = largest.size, largest.size * 7 // 8
        while largest.size > enough:
            self._drop_first(largest)
        log.warning("output_not_kept", job=key[0], attempt=key[1], bytes=before - largest.size)

    def _drop_first(self, kept: _Kept) -> None:
        size = kept.messages.popleft()[1]
        kept.size -= size
        self.size -= size

    def received(self, key: Key, upto: int) -> None:
        kept = self._attempts.get(key)
        if kept is None:
            return
        while kept.messages and kept.messages[0][0].n <= upto:
            self._drop_first(kept)
        if not kept.messages:
            del self._attempts[key]

    def forget(self, key: Key) -> None:
        """The end of this attempt was received, and all it told before that."""
        kept = self._attempts.pop(key, None)
        if kept is not None:
            self.size -= kept.size

    def again(self, *, acknowledges: bool) -> list[Told]:
        """What a new connection has to say again. A controller that acknowledges nothing would take
        it for something new: nothing is kept for it."""
        if not acknowledges:
            self._attempts.clear()
            self.size = 0
        self._keeping = acknowledges
        return [message for kept in self._attempts.values() for message, _ in kept.messages]
