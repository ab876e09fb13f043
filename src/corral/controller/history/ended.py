"""A row of the history of ended jobs; and which idempotency keys they used."""

from __future__ import annotations

from typing import NamedTuple

from corral.core.events import JobFailed, JobRejected, Journaled
from corral.core.job import Head

MESSAGE_KEPT = 400
"""Characters of a failure's type and message that the history is searched by; the journal has
all."""
BITS = 23
"""A megabyte; with a million keys in it, one in thirty new ones is looked up for nothing."""
_MASK = (1 << BITS) - 1


class EndedJob(NamedTuple):
    """A row of the history: where an ended job lies in the journal, and by what it is found."""

    job: str
    state: str
    submitted_seq: int
    last_seq: int
    ended_at: float
    batch: str
    key: str
    submitted_at: float
    seconds: float
    queue_class: str
    worker: str
    user: str
    name: str
    labels: str
    """One `key=value` between newlines."""
    code: str
    message: str

    @classmethod
    def of(cls, head: Head, fact: Journaled) -> EndedJob:
        code = message = ""
        if isinstance(fact, JobFailed):
            failure = fact.failure
            code, message = failure.code, failure.reason[:MESSAGE_KEPT]
        elif isinstance(fact, JobRejected):
            code, message = fact.code, fact.message[:MESSAGE_KEPT]
        given, labels = head.given, ""
        if given.labels:
            labels = "".join(f"\n{key}={value}\n" for key, value in given.labels)
        return cls(
            head.id,
            head.state.value,
            head.submitted_seq,
            head.last_seq,
            float(fact.at),
            given.batch,
            head.key,
            float(head.submitted_at),
            float(getattr(fact, "seconds", 0.0)),
            head.shape.queue_class.value,
            head.course.worker,
            given.user,
            given.name,
            labels,
            code,
            message,
        )


class UsedKeys:
    """A Bloom filter of the idempotency keys that were used before.

    Nearly every submission has a new key, and to ask the disk about each costs as much as to decide
    where the job goes. A text hashes differently in every process: nobody can choose collisions."""

    def __init__(self) -> None:
        self._seen = bytearray(1 << (BITS - 3))

    def add(self, key: str) -> None:
        number, seen = hash(key), self._seen
        for bit in (number & _MASK, number >> 20 & _MASK, number >> 40 & _MASK):
            seen[bit >> 3] |= 1 << (bit & 7)

    def update(self, other: UsedKeys) -> None:
        both = int.from_bytes(self._seen, "little") | int.from_bytes(other._seen, "little")
        self._seen = bytearray(both.to_bytes(len(self._seen), "little"))

    def perhaps(self, key: str) -> bool:
        number, seen = hash(key), self._seen
        for bit in (number & _MASK, number >> 20 & _MASK, number >> 40 & _MASK):
            if not seen[bit >> 3] >> (bit & 7) & 1:
                return False
        return True
