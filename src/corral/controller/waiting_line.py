"""Waiting jobs of one shape, in the order of their places.

They lie in blocks, so that one that leaves from anywhere, or comes back to its place, costs the
same however many wait.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain

from corral.core.job import JobId
from corral.scheduler.plan import Waiting

BLOCK = 1024


class WaitingLine:
    __slots__ = ("_block", "_blocks", "_size")

    def __init__(self, block: int = BLOCK) -> None:
        self._block = block
        self._blocks: list[list[Waiting]] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Waiting]:
        return chain.from_iterable(self._blocks)

    @property
    def first(self) -> Waiting:
        return self._blocks[0][0]

    def front(self, count: int) -> tuple[Waiting, ...]:
        """The first ones, or all where there are no more."""
        found: list[Waiting] = []
        for block in self._blocks:
            found += block[: count - len(found)]
            if len(found) >= count:
                break
        return tuple(found)

    def add(self, waiting: Waiting) -> None:
        blocks = self._blocks
        self._size += 1
        if not blocks or waiting.seq > blocks[-1][-1].seq:
            if not blocks or len(blocks[-1]) >= self._block:
                blocks.append([])
            blocks[-1].append(waiting)
            return
        number = bisect_left(blocks, waiting.seq, key=_last)
        block = blocks[number]
        block.insert(bisect_left(block, waiting.seq, key=_place), waiting)
        if len(block) > 2 * self._block:
            half = self._block
            blocks[number : number + 1] = [block[:half], block[half:]]

    def remove(self, job: JobId, place: int) -> None:
        """Takes a job out, if it is here."""
        found = self._find(job, place)
        if found is not None:
            number, index = found
            block = self._blocks[number]
            del block[index]
            self._size -= 1
            if not block:
                del self._blocks[number]

    def ahead_of(self, job: JobId, place: int) -> int:
        """How many are before it; 0 where it is not here."""
        found = self._find(job, place)
        if found is None:
            return 0
        number, index = found
        return sum(map(len, self._blocks[:number])) + index

    def _find(self, job: JobId, place: int) -> tuple[int, int] | None:
        if self._blocks and self._blocks[0][0].job == job:
            return 0, 0  # the usual way out is the front
        number = bisect_left(self._blocks, place, key=_last)
        if number == len(self._blocks):
            return None
        block = self._blocks[number]
        index = bisect_left(block, place, key=_place)
        return (number, index) if block[index].job == job else None


def _place(waiting: Waiting) -> int:
    return waiting.seq


def _last(block: list[Waiting]) -> int:
    return block[-1].seq
