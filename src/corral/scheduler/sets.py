"""Sets of workers: one integer with a bit for each. And what they have less and less of while a
decision is made, as sets of those that still have enough.

Workers of one size are numbered in a row, the last id first: so those of one size are few digits of
a large number, and the first of some is the highest bit, which costs nothing to find.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice, repeat

Standing = tuple[float, float]

MAX_COMPARED = 12
"""So many standings are tried; then candidates are compared one by one, if they are no more."""
CHUNK = 200
"""Of so many at once it is asked whether any of them is in a set."""


@cache
def _digits(level: int) -> bytes:
    return bytes(48 + (one > level) for one in range(256))


def bits(flags: Sequence[int]) -> int:
    """A set from a 0 or 1 for each worker, the last one first."""
    return int(bytes(flags).translate(_digits(0)) or b"0", 2)


def who_has(words: Collection[str], having: Sequence[Collection[str]]) -> dict[str, int]:
    """By word: who has it, of workers from the last to the first."""
    found = {word: bytearray(len(having)) for word in words}
    for index, some in enumerate(having):
        for word in some:
            if word in found:
                found[word][index] = 1
    return {word: bits(flags) for word, flags in found.items()}


def reaching(
    values: Sequence[float], marks: Iterable[float], *, beyond: bool = False
) -> dict[float, int]:
    """By mark: who reaches it (or is beyond it)."""
    count: Callable[[Sequence[float], float], int] = bisect_left if beyond else bisect_right
    ordered = sorted(set(marks))
    found: dict[float, int] = {}
    for start in range(0, len(ordered), 255):  # a byte holds no more levels
        some = ordered[start : start + 255]
        levels = bytes(map(count, repeat(some), reversed(values)))
        for level, mark in enumerate(some):
            found[mark] = int(levels.translate(_digits(level)) or b"0", 2)
    return found


class Column:
    """Something workers have less and less of, and who still has as much as a shape needs."""

    __slots__ = ("_levels", "_marks", "_numbers", "_reach", "least")

    def __init__(self, values: Sequence[float], marks: Iterable[float]) -> None:
        self._marks = sorted(set(marks))
        self._numbers = {mark: number for number, mark in enumerate(self._marks)}
        self._levels = list(map(bisect_right, repeat(self._marks), values))
        """How many of the marks each worker reaches."""
        least = [float("-inf"), *self._marks]
        self.least = list(map(least.__getitem__, self._levels))
        """The highest mark that each worker reaches: with more than that left nothing changes."""
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

    def by_mark(self) -> dict[float, int]:
        return dict(zip(self._marks, self._reach, strict=True))

    def fall(self, index: int, value: float) -> None:
        level, marks = self._levels[index], self._marks
        if level and marks[level - 1] > value:
            bit = 1 << index
            while level and marks[level - 1] > value:
                level -= 1
                self._reach[level] ^= bit
            self._levels[index] = level
            self.least[index] = marks[level - 1] if level else float("-inf")


class Cards:
    """Workers of one class, weight and largest card, by standing. Bit 0 is the first of them."""

    __slots__ = ("everyone", "first", "keys", "kinds", "said_of", "whole")

    def __init__(self, said_of: tuple[str, float, float], first: int, count: int) -> None:
        self.said_of = said_of
        """Class, weight and largest card."""
        self.first = first
        self.everyone = self.whole = (1 << count) - 1
        """Those who still have something to give, and all there were."""
        self.kinds: dict[Standing | None, int] = {}
        self.keys: list[Standing] = []

    def add(self, key: Standing, bit: int) -> None:
        if key in self.kinds:
            self.kinds[key] |= bit
        else:
            self.kinds[key] = bit
            insort(self.keys, key)

    def remove(self, key: Standing | None, bit: int) -> None:
        left = self.kinds[key] ^ bit
        if left:
            self.kinds[key] = left
        else:
            del self.kinds[key]
            assert key is not None
            del self.keys[bisect_left(self.keys, key)]

    def best(
        self, found: int, keys_of: Sequence[Standing | None], after: Standing | None = None
    ) -> Standing:
        """The best standing among these; none is better than `after`."""
        keys, kinds = self.keys, self.kinds
        number = 0 if after is None else bisect_left(keys, after)
        for key in islice(keys, number, number + MAX_COMPARED):
            if found & kinds[key]:
                return key
        if found.bit_count() <= MAX_COMPARED:
            first = self.first
            return min(own for one in indices(found) if (own := keys_of[first + one]))
        number += MAX_COMPARED
        while not found & kinds[keys[number]]:
            number += 1
        return keys[number]


class RankOrder:
    """Members of a set in order of their ids."""

    def __init__(self, ids: Sequence[str], places: Mapping[str, int]) -> None:
        self._ids = ids
        self._places = places
        self._chunks: list[tuple[list[int], int]] = []
        """Everybody in order, in parts that are passed at once where none of them is asked for."""

    def members(self, some: int) -> Iterator[int]:
        if some.bit_count() <= MAX_COMPARED:
            yield from sorted(indices(some), key=self._ids.__getitem__)
            return
        if not self._chunks:
            everybody = list(map(self._places.__getitem__, sorted(self._ids)))
            for start in range(0, len(everybody), CHUNK):
                chunk = everybody[start : start + CHUNK]
                self._chunks.append((chunk, members_of(chunk)))
        for chunk, all_of_it in self._chunks:
            if here := some & all_of_it:
                for index in chunk:
                    if here >> index & 1:
                        yield index

    def first(self, some: int) -> int:
        return next(self.members(some))


def members_of(places: Iterable[int]) -> int:
    ordered = sorted(places)
    if not ordered:
        return 0
    flags = bytearray(ordered[-1] + 1)
    for index in ordered:
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
