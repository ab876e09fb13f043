"""Job ids: 15 characters that sort by time, never repeat, and read aloud without l, o, i or u."""

from __future__ import annotations

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_TAIL_SPACE = 32**6
"""The last six characters; the nine before them are milliseconds."""
_THREE = [a + b + c for a in _ALPHABET for b in _ALPHABET for c in _ALPHABET]
"""The three characters that stand for each 15 bits."""


class Ids:
    """Hands out ids in order, also many within one millisecond and when the clock steps back."""

    def __init__(self, seed: int) -> None:
        self._begin(0, seed % _TAIL_SPACE)

    def new(self, now: float, *, seed: int) -> str:
        ms = int(now * 1000)
        if ms > self._ms:
            self._begin(ms, seed % (_TAIL_SPACE // 2))
        else:
            self._tail += 1
            if self._tail == _TAIL_SPACE:
                self._begin(self._ms + 1, 0)
        return f"{self._time}{_THREE[self._tail >> 15]}{_THREE[self._tail & 0x7FFF]}"

    def _begin(self, ms: int, tail: int) -> None:
        self._ms, self._tail = ms, tail
        high, middle = _THREE[ms >> 30 & 0x7FFF], _THREE[ms >> 15 & 0x7FFF]
        self._time = f"{high}{middle}{_THREE[ms & 0x7FFF]}"
