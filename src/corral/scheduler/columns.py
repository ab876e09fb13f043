"""Many workers at once: a set of them is one integer with a bit for each (see `sets`).

What each shape asks becomes a handful of such sets (who reaches so many processors, who has that
label), so what a decision costs does not grow with shapes x workers. `abilities` knows what never
changes, `stock` what shrinks while a decision is made, `models` what is loaded where. `plan.Rooms`
says the same worker by worker; a property test holds that both always agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from heapq import nsmallest
from operator import attrgetter

from corral.core.job import QueueClass, Shape
from corral.core.worker import SLACK
from corral.scheduler.abilities import Abilities
from corral.scheduler.circuit import CLOSED
from corral.scheduler.fit import Room, kind_ahead, refuse_beside_others, refuse_silent
from corral.scheduler.models import Models
from corral.scheduler.rank import (
    NEUTRAL,
    UNKNOWN,
    Purpose,
    ahead_of,
    biggest_card,
    chosen,
    liked,
    misfit,
    of_models,
    of_pace,
    pace,
    purpose,
)
from corral.scheduler.sets import Cards, Column, RankOrder, bits, indices, members_of
from corral.scheduler.snapshot import Line, Placement, Seat, Snapshot, Waiting
from corral.scheduler.stock import Stock

Size = tuple[str, float, float]
"""What a worker is to all work alike: its class, its weight, its largest card."""


class Able:
    """Who can run a line's shape."""

    __slots__ = (
        "behind",
        "chosen",
        "classes",
        "count",
        "kind",
        "known",
        "line",
        "seconds",
        "tenths",
        "wanted",
        "who",
    )

    def __init__(
        self, line: Line, wanted: Purpose, who: int, suited: int, classes: list[int]
    ) -> None:
        needs = line.shape.needs
        self.line = line
        self.wanted = wanted
        self.who, self.behind = who, who & suited
        self.count = who.bit_count()
        self.chosen = chosen(self.count)
        self.classes = classes
        """Everybody by class, the best first."""
        self.tenths = 10 if needs.gpus else needs.gpu_tenths
        """What it takes of a card."""
        self.kind = kind_ahead(needs, line.typical_s)
        self.known = 0
        """Those that did such work before."""
        self.seconds: dict[int, float] = {}
        """How long it took there, where there is a choice."""

    def __bool__(self) -> bool:
        return self.count > 0

    def said(self, size: Size, missing: int = 0) -> str:
        """The part of a `reason` that is the same for all workers of one size."""
        said = self.chosen
        if models := self.line.shape.needs.models:
            said += of_models(models, missing)
        return said + liked(self.wanted, *size) if self.count > 1 else said


class Columns:
    def __init__(self, world: Snapshot) -> None:
        self._now = world.now
        self._group(world.seats)
        workers = self._workers
        self._ids = [one.id for one in workers]
        self._places = dict(zip(self._ids, range(len(workers)), strict=True))
        self._order = RankOrder(self._ids, self._places)
        backward = self._seats[::-1]
        if any(seat.circuit is not CLOSED for seat in backward):
            self._present = bits([one.present(world.now) for one in backward])
            on_probe = [n for n, one in enumerate(self._seats) if one.on_probe(world.now)]
        else:
            there = [one.connected and not one.draining for one in reversed(workers)]
            self._present, on_probe = bits(there), []
        self._on_probe = members_of(on_probe)
        self._shared = [index for index, one in enumerate(workers) if one.taken]
        """Whose GPUs others use too."""
        self._silent = [index for index, one in enumerate(workers) if one.withdrawn]
        """With an image server that does not answer."""
        rooms = {n: Room(one.worker, one.held) for n, one in enumerate(self._seats) if one.held}
        lines = world.lines
        needs = [line.shape.needs for line in lines]
        cpus = Column(
            [one.capabilities.cpus + SLACK for one in workers], (one.cpus for one in needs)
        )
        memory = Column(
            [one.capabilities.memory_gb + SLACK for one in workers],
            (one.memory_gb for one in needs),
        )
        self._abilities = Abilities(
            lines, workers, self._places, self._cards_gb, cpus.by_mark(), memory.by_mark()
        )
        by_card = self._by_card()
        self._stock = Stock(lines, workers, rooms, self._groups, (cpus, memory), on_probe)
        able = self._able_beside_others
        self._models = Models(lines, workers, rooms, self._cards_gb, by_card, self._order, able)
        self._orders: dict[Purpose, tuple[int, list[int]]] = {}
        self._kept = self._strongest(world.keep_for_interactive, by_card)

    def _group(self, seats: Sequence[Seat]) -> None:
        """Numbers the workers: those of one class in a row, within it those of one size, and of
        them the last id first. So the best of a class, and of a size, is always the highest."""
        by_size: defaultdict[Size, list[Seat]] = defaultdict(list)
        for seat in sorted(seats, key=attrgetter("worker.id"), reverse=True):
            can = seat.worker.capabilities
            gpus = can.gpus
            card = gpus[0].vram_gb if len(gpus) == 1 else biggest_card(can)
            by_size[can.suits, can.weight, card].append(seat)
        self._seats: list[Seat] = []
        self._groups: list[Cards] = []
        self._cards_gb: list[float] = []
        """The largest card of each worker."""
        for size in sorted(by_size, key=lambda size: (size[0], size[1], -size[2])):
            some = by_size[size]
            self._groups.append(Cards(size, len(self._seats), len(some)))
            self._seats += some
            self._cards_gb += [size[2]] * len(some)
        self._workers = [seat.worker for seat in self._seats]

    def _by_card(self) -> dict[float, int]:
        """Everybody by the largest card."""
        found: dict[float, int] = {}
        for cards in self._groups:
            card = cards.said_of[2]
            found[card] = found.get(card, 0) | cards.everyone << cards.first
        return found

    def _strongest(self, count: int, by_card: dict[float, int]) -> int:
        """As `strongest`."""
        kept = 0
        for card in sorted(by_card, reverse=True):
            some = by_card[card] & self._present
            if some.bit_count() > count:
                some = members_of(nsmallest(count, indices(some), key=self._strength))
            kept |= some
            count -= some.bit_count()
            if not count:
                break
        return kept

    def _strength(self, index: int) -> tuple[bool, float, str]:
        seat = self._seats[index]
        return bool(seat.held), -seat.worker.capabilities.cpus, seat.worker.id

    # --- what a decision asks ---

    def could(self, shape: Shape) -> bool:
        return self._able(shape) != 0

    def _able(self, shape: Shape) -> int:
        who = self._abilities.able(shape)
        return who & self._models.possible(shape.needs.models) if shape.needs.models else who

    def _able_beside_others(self, shape: Shape) -> int:
        """Without those where processes that are not ours leave too little for it, or an image
        server is silent."""
        who = self._able(shape)
        for index in self._silent:
            if who >> index & 1 and refuse_silent(shape, self._workers[index]):
                who ^= 1 << index
        if shape.needs.wants_gpu:
            for index in self._shared:
                if who >> index & 1 and refuse_beside_others(shape, self._workers[index]):
                    who ^= 1 << index
        return who

    def able(self, line: Line, *, turn: bool = False) -> Able:
        shape = line.shape
        who = self._able_beside_others(shape) & self._present & ~self._stock.probed
        if self._kept and not turn and shape.queue_class is QueueClass.BATCH:
            who &= ~self._kept
        wanted = purpose(shape)
        suited, classes = self._liking(wanted)
        able = Able(line, wanted, who, suited & ~self._on_probe, classes)
        places = self._places
        if known := [places[worker] for worker in line.paces if worker in places]:
            able.known = members_of(known)
            if able.count > 1:
                ids = self._ids
                able.seconds = {index: line.paces[ids[index]][0] for index in known}
        return able

    def _liking(self, wanted: Purpose) -> tuple[int, list[int]]:
        """Whom such work may wait on, and the classes in the order in which it likes them."""
        if wanted not in self._orders:
            suited, classes = 0, dict[int, int]()
            for cards in self._groups:
                order = misfit(wanted, cards.said_of[0])
                classes[order] = classes.get(order, 0) | cards.whole << cards.first
            for order, some in classes.items():
                suited |= some if order <= NEUTRAL else 0
            self._orders[wanted] = suited, [classes[order] for order in sorted(classes)]
        return self._orders[wanted]

    def keep(self, line: Line, able: Able) -> str:
        if line.shape.needs.models:
            first = self._models.emptied_first(line.shape, able.who)
        else:
            first = self._order.first(able.who)
        self._present &= ~(1 << first)
        return self._ids[first]

    def search(self, line: Line, able: Able, begin: int = 0) -> Iterator[Placement]:
        if line.shape.needs.models:
            return self._search_with_models(able, begin)
        return self._search(able, begin)

    def _search(self, able: Able, begin: int) -> Iterator[Placement]:
        """`fit` may still name some that others filled meanwhile: whoever would be chosen is asked,
        and only if it has no room any more the rest of them are."""
        tenths, known, seconds, shape = able.tenths, able.known, able.seconds, able.line.shape
        ids, stock, take = self._ids, self._stock, self._stock.take
        queue = iter(able.line.waiting[begin:])
        waiting = next(queue)
        fit = able.who & stock.fitting(shape.needs)
        for left in able.classes:
            while found := fit & left:
                cards = stock.groups[found.bit_length() - 1]
                first, kinds, key = cards.first, cards.kinds, None
                some = fit >> first & cards.everyone
                if not some:
                    fit &= stock.fitting(shape.needs)
                    continue
                met, said = known >> first & some, able.said(cards.said_of)
                while some:
                    alike = some & kinds.get(key, 0)
                    if not alike:
                        some &= cards.everyone
                        if not some:
                            break
                        key = cards.best(some, stock.keys, key)
                        alike = some & kinds[key]
                    index = first + alike.bit_length() - 1
                    if alike & met:
                        index = self._quickest(able, first, alike)
                    words = take(index, shape, tenths)
                    if words:
                        if index in seconds:
                            words = of_pace(seconds[index]) + words
                        yield Placement(waiting.job, waiting.attempt + 1, ids[index], said + words)
                        waiting = next(queue)
                    else:
                        fit = (fit ^ 1 << index) & stock.fitting(shape.needs)
                        some = fit >> first & cards.everyone
                left &= (1 << first) - 1
        for index in self._behind(able):
            why = able.chosen + ahead_of(stock.ahead[index])
            stock.send_ahead(index, shape.needs)
            yield Placement(waiting.job, waiting.attempt + 1, ids[index], why, ahead=True)
            waiting = next(queue)

    def _behind(self, able: Able) -> Iterator[int]:
        """Whom to send ahead to: the one with the shortest local line, then by id."""
        stock, kind, length = self._stock, able.kind, 0
        while stock.left_ahead and (behind := able.behind & stock.open[kind]):
            for index in self._order.members(behind & stock.queues.get(length, 0)):
                if not stock.left_ahead:
                    return
                if stock.ahead[index] == length and stock.open[kind] >> index & 1:
                    yield index
            length += 1

    def turn(self, line: Line, able: Able) -> Placement | None:
        waiting, who = line.waiting[0], able.who & self._stock.fitting(line.shape.needs)
        return self._place(able, waiting, who)

    def _search_with_models(self, able: Able, begin: int) -> Iterator[Placement]:
        """Nothing of the search is kept for the next of the line: what is loaded has changed."""
        needs, stock = able.line.shape.needs, self._stock
        kind = self._models.kinds[able.line.shape]
        for waiting in able.line.waiting[begin:]:
            who = self._models.willing(kind, self._now - waiting.since, able.who)
            placement = self._place(able, waiting, who & stock.fitting(needs))
            if placement is None and stock.left_ahead:
                behind = who & able.behind & stock.open[able.kind]
                placement = self._send_with_models(able, waiting, behind)
            if placement is None:
                return
            yield placement

    def _place(self, able: Able, waiting: Waiting, free: int) -> Placement | None:
        shape = able.line.shape
        while free:
            some, missing = self._models.nearest(shape.needs.models, free)
            index = self._best_of(able, some)
            if words := self._stock.take(index, shape, able.tenths):
                self._models.load(shape, index)
                why = able.said(self._stock.groups[index].said_of, missing)
                if index in able.seconds:
                    why += of_pace(able.seconds[index])
                return Placement(waiting.job, waiting.attempt + 1, self._ids[index], why + words)
            free ^= 1 << index
        return None

    def _send_with_models(self, able: Able, waiting: Waiting, behind: int) -> Placement | None:
        if not behind:
            return None
        shape, stock = able.line.shape, self._stock
        some, missing = self._models.nearest(shape.needs.models, behind)
        shortest = next(found for n in sorted(stock.queues) if (found := some & stock.queues[n]))
        index = self._order.first(shortest)
        why = able.chosen + of_models(shape.needs.models, missing)
        why += ahead_of(stock.ahead[index])
        stock.send_ahead(index, shape.needs)
        self._models.load(shape, index)
        return Placement(waiting.job, waiting.attempt + 1, self._ids[index], why, ahead=True)

    def _best_of(self, able: Able, some: int) -> int:
        """Of these the one to prefer. Everybody with room stands somewhere."""
        found = next(found for one in able.classes if (found := some & one))
        cards = self._stock.groups[found.bit_length() - 1]
        found = some >> cards.first & cards.everyone
        alike = found & cards.kinds[cards.best(found, self._stock.keys)]
        return self._quickest(able, cards.first, alike)

    def _quickest(self, able: Able, first: int, alike: int) -> int:
        """The one that did such work quickest, then last; strangers are average."""
        met = alike & able.known >> first
        if not met or not alike & (alike - 1):
            return first + alike.bit_length() - 1
        ids = self._ids
        found = [(pace(able.line, ids[first + one]), -one) for one in indices(met)]
        if strangers := alike ^ met:
            found.append((UNKNOWN, 1 - strangers.bit_length()))
        return first - min(found)[1]
