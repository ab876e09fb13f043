"""What many workers have loaded, as sets: `affinity` and `rank.missing` for all of them at once.

What is loaded changes with every placement that loads something, in both directions: so nothing is
remembered here beyond the next such change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from corral.core.job import QueueClass, Shape
from corral.core.worker import Worker
from corral.scheduler.affinity import PATIENCE_S, SMALL_FIRST_S, Wanted, standing
from corral.scheduler.fit import NOTHING, Room
from corral.scheduler.rank import biggest_card
from corral.scheduler.sets import bits, indices
from corral.scheduler.snapshot import Line

Names = tuple[str, ...]


class Models:
    """Of the lines that want models; `able` says who could ever run a shape."""

    def __init__(
        self,
        lines: Sequence[Line],
        workers: Sequence[Worker],
        rooms: Sequence[Room | None],
        by_card: Mapping[float, int],
    ) -> None:
        self._shapes = [line.shape for line in lines if line.shape.needs.models]
        self._wanted = Wanted((line.shape, len(line.waiting)) for line in lines)
        self._workers = workers
        self.able: Callable[[Shape], int] = lambda shape: 0
        self._able: dict[Shape, int] = {}
        self._first: dict[Shape, list[tuple[Shape, Names, int]]] = {}
        """By shape: those whose work goes first where it is loaded, and who could run them."""
        self._willing: dict[Shape, tuple[int, int]] = {}
        self._version = 0
        names = {model for shape in self._shapes for model in shape.needs.models}
        if not names:
            return
        backward = workers[::-1]
        present = _by_model(names, [one.capabilities.models_present for one in backward])
        fetching = bits([one.capabilities.fetches_models for one in backward])
        own = _by_model(names, [one.models_loaded for one in backward])
        self._possible = {model: fetching | present[model] | own[model] for model in names}
        self.having = [
            (frozenset(one.models_loaded) if one.models_loaded else NOTHING)
            if room is None
            else room.models
            for one, room in zip(workers, rooms, strict=True)
        ]
        """What each will have loaded once it has done what it holds."""
        loaded = _by_model(names, self.having[::-1])
        sets = {shape.needs.models for shape in self._shapes}
        self._present = {wanted: _all_of(wanted, present) for wanted in sets}
        self._loaded = {wanted: _all_of(wanted, loaded) for wanted in sets}
        self._cards: list[int] = []
        """Everybody by the largest card, small ones first."""
        if any(shape.queue_class is QueueClass.INTERACTIVE for shape in self._shapes):
            self._cards = [by_card[size] for size in sorted(by_card)]

    def possible(self, models: Names) -> int:
        """Who can have them loaded, sooner or later."""
        return _all_of(models, self._possible)

    def nearest(self, models: Names, some: int) -> tuple[int, int]:
        """Those of them that have the models loaded, else those that have them on their disks, else
        all; and how far away the models are, as `rank.missing` says it."""
        if near := some & self._loaded[models]:
            return near, 0
        if near := some & self._present[models]:
            return near, 1
        return some, 2

    def willing(self, shape: Shape, waited_s: float, able: int) -> int:
        """As `Wanted.willing`."""
        gladly = able & self._loaded[shape.needs.models]
        if shape.queue_class is QueueClass.INTERACTIVE:
            if waited_s >= (PATIENCE_S if gladly else SMALL_FIRST_S):
                return able
            if not gladly:
                gladly = self._smaller_half(shape.needs.models, able)
        version, others = self._willing.get(shape, (-1, 0))
        if version != self._version:
            others = self._with_own_work(shape)
            self._willing[shape] = self._version, others
        return gladly | (able ^ (able & others))

    def _smaller_half(self, models: Names, able: int) -> int:
        left = (able.bit_count() + 1) // 2
        found = 0
        present = able & self._present[models]
        for level in (present, able ^ present):
            for card in self._cards:
                some = level & card
                count = some.bit_count()
                if count > left:
                    some, count = _lowest(some, left), left
                found |= some
                left -= count
                if not left:
                    return found
        return found

    def _with_own_work(self, shape: Shape) -> int:
        """As `Wanted.own_work`: who has something loaded for which others wait that go first."""
        if shape not in self._first:
            urgent, own = shape.queue_class is QueueClass.INTERACTIVE, standing(shape)
            self._first[shape] = [
                (other, other.needs.models, self._could(other))
                for other in self._shapes
                if urgent or standing(other) <= own
            ]
        who, left = 0, self._wanted.shapes()
        for other, models, could in self._first[shape]:
            if other in left:
                who |= self._loaded[models] & could
        return who

    def _could(self, shape: Shape) -> int:
        if shape not in self._able:
            self._able[shape] = self.able(shape)
        return self._able[shape]

    def load(self, shape: Shape, index: int, bit: int) -> None:
        """One of this shape was placed there; as `Room.load`."""
        models = shape.needs.models
        if not self.having[index].issuperset(models):
            self.having[index] = have = frozenset(models)
            self._version += 1
            for wanted, who in self._loaded.items():
                if bool(who & bit) != have.issuperset(wanted):
                    self._loaded[wanted] = who ^ bit
        if self._wanted.placed(shape):
            self._version += 1

    def emptied_first(self, shape: Shape, able: int) -> int:
        """The bit of the worker to empty, as `rank.emptied` says it."""
        some = indices(self.nearest(shape.needs.models, able)[0])
        return 1 << min(some, key=lambda index: biggest_card(self._workers[index].capabilities))


def _by_model(
    names: Collection[str],
    having: Sequence[Collection[str]],
) -> dict[str, int]:
    """Who has a model, of workers from the last to the first."""
    found = {model: bytearray(len(having)) for model in names}
    for index, models in enumerate(having):
        for model in models:
            if model in found:
                found[model][index] = 1
    return {model: bits(flags) for model, flags in found.items()}


def _all_of(models: Names, having: Mapping[str, int]) -> int:
    who = -1
    for model in models:
        who &= having[model]
    return who


def _lowest(who: int, count: int) -> int:
    """The first `count` members."""
    low, high = 0, who.bit_length()
    while low < high:
        middle = (low + high) // 2
        if (who & ((1 << middle) - 1)).bit_count() < count:
            low = middle + 1
        else:
            high = middle
    return who & ((1 << low) - 1)
