"""Job ids: 15 characters that sort by time, never repeat, and read aloud without l, o, i or u."""

from __future__ import annotations

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_TIME_CHARS, _TAIL_CHARS = 9, 6
_TAIL_SPACE = 32**_TAIL_CHARS


_THREE = [a + b + c for a in _ALPHABET for b in _ALPHABET for c in _ALPHABET]
"""What 15 bits read as."""


def _base32(number: int, width: int) -> str:
    text = ""
    for shift in range(5 * width - 15, -1, -15):
        text += _THREE[number >> shift & 0x7FFF]
    return text


class Ids:
    """Hands out ids in order, also many within one millisecond and when the clock steps back."""

    def __init__(self, seed: int) -> None:
        self._ms = 0
        self._time = _base32(0, _TIME_CHARS)
        self._tail = seed % _TAIL_SPACE

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
        self._ms, self._time, self._tail = ms, _base32(ms, _TIME_CHARS), tail
