"""Sets of workers: one integer with a bit for each, in order of their ids. And what they have less
and less of while a decision is made, as sets of those that still have enough.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from functools import cache


@cache
def _digits(level: int) -> bytes:
    return bytes(48 + (one > level) for one in range(256))


def bits(flags: Sequence[int]) -> int:
    """A set from a 0 or 1 for each worker, the last one first."""
    return int(bytes(flags).translate(_digits(0)) or b"0", 2)


def reaching(
    values: Sequence[float], marks: Iterable[float], *, beyond: bool = False
) -> dict[float, int]:
    """By mark: who reaches it (or is beyond it)."""
    count: Callable[[Sequence[float], float], int] = bisect_left if beyond else bisect_right
    ordered = sorted(set(marks))
    found: dict[float, int] = {}
    for start in range(0, len(ordered), 255):  # a byte holds no more levels
        some = ordered[start : start + 255]
        levels = bytes([count(some, value) for value in reversed(values)])
        for level, mark in enumerate(some):
            found[mark] = int(levels.translate(_digits(level)) or b"0", 2)
    return found


class Column:
    """Something workers have less and less of, and who still has as much as a shape needs."""

    __slots__ = ("_levels", "_marks", "_numbers", "_reach")

    def __init__(self, values: Sequence[float], marks: Iterable[float]) -> None:
        self._marks = sorted(set(marks))
        self._numbers = {mark: number for number, mark in enumerate(self._marks)}
        self._levels = [bisect_right(self._marks, value) for value in values]
        """How many of the marks each worker reaches."""
        if len(self._marks) < 256:  # a byte holds no more levels
            flags = bytes(self._levels)[::-1]
            self._reach = [
                int(flags.translate(_digits(number)) or b"0", 2)
                for number in range(len(self._marks))
            ]
        else:
            reach = reaching(values, self._marks)
            self._reach = [reach[mark] for mark in self._marks]

    def __getitem__(self, mark: float) -> int:
        return self._reach[self._numbers[mark]]

    def fall(self, index: int, value: float, bit: int) -> int:
        """Answers with how many of the marks it still reaches."""
        level = self._levels[index]
        if level and self._marks[level - 1] > value:
            while level and self._marks[level - 1] > value:
                level -= 1
                self._reach[level] ^= bit
            self._levels[index] = level
        return level


class Cards:
    """Workers of one class and weight whose largest cards are of one size, by how they stand among
    each other."""

    __slots__ = ("everyone", "keys", "kinds")

    def __init__(self) -> None:
        self.everyone = 0
        self.kinds: dict[tuple[float, float] | None, int] = {}
        self.keys: list[tuple[float, float]] = []

    def add(self, key: tuple[float, float], bit: int) -> None:
        if key in self.kinds:
            self.kinds[key] |= bit
        else:
            self.kinds[key] = bit
            insort(self.keys, key)

    def remove(self, key: tuple[float, float], bit: int) -> None:
        left = self.kinds[key] ^ bit
        if left:
            self.kinds[key] = left
        else:
            del self.kinds[key]
            del self.keys[bisect_left(self.keys, key)]


def members_of(places: Sequence[int]) -> int:
    if len(places) == 1:
        return 1 << places[0]
    flags = bytearray(places[-1] + 1)
    for index in places:
        flags[-1 - index] = 1
    return bits(flags)


def indices(who: int) -> list[int]:
    found, place = [], -1
    while who:
        step = (who & -who).bit_length()
        place += step
        found.append(place)
        who >>= step
    return found
