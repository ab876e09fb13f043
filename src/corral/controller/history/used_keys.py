"""Idempotency keys that were used before, as far as memory can say it: surely not, or perhaps.

Nearly every submission has a key that nobody ever used, and asking the disk about each of them
costs as much as deciding where the job goes. The hash of a text is another one in every process,
so nobody can choose keys that collide.
"""

from __future__ import annotations

BITS = 23
"""A megabyte; with a million keys in it, one in thirty new ones is looked up for nothing."""
_MASK = (1 << BITS) - 1


class UsedKeys:
    def __init__(self) -> None:
        self._seen = bytearray(1 << (BITS - 3))

    def add(self, key: str) -> None:
        number, seen = hash(key), self._seen
        for bit in (number & _MASK, number >> 20 & _MASK, number >> 40 & _MASK):
            seen[bit >> 3] |= 1 << (bit & 7)

    def update(self, other: UsedKeys) -> None:
        """The keys of both."""
        both = int.from_bytes(self._seen, "little") | int.from_bytes(other._seen, "little")
        self._seen = bytearray(both.to_bytes(len(self._seen), "little"))

    def perhaps(self, key: str) -> bool:
        number, seen = hash(key), self._seen
        for bit in (number & _MASK, number >> 20 & _MASK, number >> 40 & _MASK):
            if not seen[bit >> 3] >> (bit & 7) & 1:
                return False
        return True
