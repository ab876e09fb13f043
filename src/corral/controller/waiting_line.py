"""Waiting jobs of one shape, in the order of their places.

They lie in blocks, so that one that leaves from anywhere, or comes back to its place, costs the
same however many wait. What a decision sees of a job is made when it comes near the front: a
million that wait have nothing but their heads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain, islice
from operator import attrgetter

from corral.core.job import Head, JobId
from corral.scheduler.plan import Waiting

BLOCK = 1024
_place, _seq = attrgetter("place"), attrgetter("seq")


class WaitingLine:
    __slots__ = ("_block", "_blocks", "_front", "_size")

    def __init__(self, block: int = BLOCK) -> None:
        self._block = block
        self._blocks: list[list[Head]] = []
        self._front: list[Waiting] = []
        """The first ones, as far as a decision has asked for them."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Head]:
        return chain.from_iterable(self._blocks)

    @property
    def first(self) -> Head:
        return self._blocks[0][0]

    def front(self, count: int) -> tuple[Waiting, ...]:
        known = self._front
        if len(known) < min(count, self._size):
            known += [
                Waiting(head.id, head.place, head.submitted_at, head.attempt)
                for head in islice(self, len(known), count)
            ]
        return tuple(known[:count])

    def add(self, head: Head) -> None:
        blocks, place = self._blocks, head.place
        self._size += 1
        if not blocks or place > blocks[-1][-1].place:
            if not blocks or len(blocks[-1]) >= self._block:
                blocks.append([])
            blocks[-1].append(head)
            return
        number = bisect_left(blocks, place, key=_last)
        block = blocks[number]
        block.insert(bisect_left(block, place, key=_place), head)
        if self._front and place < self._front[-1].seq:
            del self._front[bisect_left(self._front, place, key=_seq) :]
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
            if not index and not number:
                del self._front[:1]
            elif self._front and place <= self._front[-1].seq:
                del self._front[bisect_left(self._front, place, key=_seq)]
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
        if self._blocks and self._blocks[0][0].id == job:
            return 0, 0  # the usual way out is the front
        number = bisect_left(self._blocks, place, key=_last)
        if number == len(self._blocks):
            return None
        block = self._blocks[number]
        index = bisect_left(block, place, key=_place)
        return (number, index) if block[index].id == job else None


def _last(block: list[Head]) -> int:
    return block[-1].place
