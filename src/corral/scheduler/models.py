"""What many workers have loaded, as sets: `rank.Wanted` and `rank.missing` for all of them at once.

What is loaded changes with every placement that loads something, in both directions: so nothing is
remembered here beyond the next such change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice

from corral.core.job import QueueClass, Shape
from corral.core.worker import Worker
from corral.scheduler.fit import Room
from corral.scheduler.rank import MAX_HOLD_OUT_S, SMALL_FIRST_S, standing
from corral.scheduler.sets import RankOrder, bits, members_of, who_has
from corral.scheduler.snapshot import Line

Names = tuple[str, ...]


class Kind:
    """A line that wants models: what is left of it, and whose work goes before its own."""

    __slots__ = ("able", "first", "left", "models", "others", "shape", "version")

    def __init__(self, line: Line) -> None:
        self.shape = line.shape
        self.models = line.shape.needs.models
        self.left = len(line.waiting)
        self.able = -1
        """Who could run it; below zero while nobody has asked."""
        self.first: list[Kind] | None = None
        """Those whose work goes first where it is loaded."""
        self.version, self.others = -1, 0
        """Who has something loaded for which others wait that go first, and when that was so."""


class Models:
    """Of the lines that want models; `able` says who could ever run a shape."""

    def __init__(
        self,
        lines: Sequence[Line],
        workers: Sequence[Worker],
        rooms: Mapping[int, Room],
        cards_gb: Sequence[float],
        by_card: Mapping[float, int],
        order: RankOrder,
        able: Callable[[Shape], int],
    ) -> None:
        self.kinds = {line.shape: Kind(line) for line in lines if line.shape.needs.models}
        self._able, self._cards_gb = able, cards_gb
        self._order = order
        self._version = 0
        names = {model for kind in self.kinds.values() for model in kind.models}
        if not names:
            return
        backward = workers[::-1]
        present = who_has(names, [one.capabilities.models_present for one in backward])
        fetching = bits([one.capabilities.fetches_models for one in backward])
        own = [one.models_loaded for one in workers]
        loaded = who_has(names, own[::-1])
        self._possible = {model: fetching | present[model] | loaded[model] for model in names}
        self._having: list[Collection[str]] = [*own]
        """What each will have loaded once it has done what it holds."""
        sets = {kind.models for kind in self.kinds.values()}
        self._sets_in: dict[Collection[str], set[Names]] = {}
        self._present = {wanted: _all_of(wanted, present) for wanted in sets}
        self._loaded = {wanted: _all_of(wanted, loaded) for wanted in sets}
        for index, room in rooms.items():
            self._change(index, room.models)
        self._cards: list[int] = []
        """Everybody by the largest card, small ones first."""
        if any(shape.queue_class is QueueClass.INTERACTIVE for shape in self.kinds):
            self._cards = [by_card[size] for size in sorted(by_card)]

    def possible(self, models: Names) -> int:
        """Who can have them loaded, sooner or later."""
        return _all_of(models, self._possible)

    def nearest(self, models: Names, some: int) -> tuple[int, int]:
        """Those that have them loaded, else on disk, else all; and the `rank.missing` of these."""
        if not models:
            return some, 0
        if near := some & self._loaded[models]:
            return near, 0
        if near := some & self._present[models]:
            return near, 1
        return some, 2

    def willing(self, kind: Kind, waited_s: float, able: int) -> int:
        """As `Wanted.willing`."""
        gladly = able & self._loaded[kind.models]
        if kind.shape.queue_class is QueueClass.INTERACTIVE:
            if waited_s >= (MAX_HOLD_OUT_S if gladly else SMALL_FIRST_S):
                return able
            if not gladly:
                gladly = self._smaller_half(kind.models, able)
        if kind.version != self._version:
            kind.version, kind.others = self._version, self._with_own_work(kind)
        return gladly | (able ^ (able & kind.others))

    def _smaller_half(self, models: Names, able: int) -> int:
        left = (able.bit_count() + 1) // 2
        found = 0
        present = able & self._present[models]
        for level in (present, able ^ present):
            for card in self._cards:
                some = level & card
                count = some.bit_count()
                if count > left:
                    some, count = members_of(islice(self._order.members(some), left)), left
                found |= some
                left -= count
                if not left:
                    return found
        return found

    def _with_own_work(self, kind: Kind) -> int:
        """As `Wanted.own_work`: who has something loaded for which others wait that go first."""
        if kind.first is None:
            urgent, own = kind.shape.queue_class is QueueClass.INTERACTIVE, standing(kind.shape)
            kind.first = [
                other for other in self.kinds.values() if urgent or standing(other.shape) <= own
            ]
        who, loaded = 0, self._loaded
        for other in kind.first:
            if other.left:
                if other.able < 0:
                    other.able = self._able(other.shape)
                who |= loaded[other.models] & other.able
        return who

    def load(self, shape: Shape, index: int) -> None:
        """One of this shape was placed there; as `Room.load`."""
        kind = self.kinds.get(shape)
        if kind is None:
            return  # it wants none
        have = self._having[index]
        if not all(model in have for model in kind.models):
            self._version += 1
            self._change(index, frozenset(kind.models))
        if kind.left:
            kind.left -= 1
            self._version += not kind.left

    def _change(self, index: int, have: Collection[str]) -> None:
        before, after = self._within(self._having[index]), self._within(have)
        self._having[index] = have
        for wanted in before ^ after:
            self._loaded[wanted] ^= 1 << index

    def _within(self, have: Collection[str]) -> set[Names]:
        """Which of the wanted sets of models are part of it."""
        if have not in self._sets_in:
            self._sets_in[have] = {
                wanted for wanted in self._loaded if all(model in have for model in wanted)
            }
        return self._sets_in[have]

    def emptied_first(self, shape: Shape, able: int) -> int:
        """The worker to empty, as `rank.emptied` says it."""
        some = self._order.members(self.nearest(shape.needs.models, able)[0])
        return min(some, key=self._cards_gb.__getitem__)


def _all_of(models: Names, having: Mapping[str, int]) -> int:
    who = -1
    for model in models:
        who &= having[model]
    return who
