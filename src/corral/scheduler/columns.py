"""Many workers at once: a set of them is one integer with a bit for each, in order of their ids.

What each shape asks becomes a handful of such sets (who reaches so many processors, who has that
label), so what a decision costs does not grow with shapes x workers. Resources only shrink while a
decision is made: whoever left a set does not come back, and no line looks twice at what it passed.
`rooms` says the same worker by worker; a property test holds that both always agree.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from itertools import islice

from corral.core.job import Needs, QueueClass, Shape
from corral.core.worker import SLACK, Capabilities, Holding, Worker
from corral.scheduler.circuit import CLOSED
from corral.scheduler.fit import (
    Room,
    ahead_for,
    ahead_limit,
    ahead_of_cards,
    refuse_beside_others,
)
from corral.scheduler.models import Models
from corral.scheduler.rank import (
    NEUTRAL,
    UNKNOWN,
    Purpose,
    ahead_of,
    biggest_card,
    chosen,
    free_there,
    free_words,
    liked,
    misfit,
    of_models,
    of_pace,
    pace,
    purpose,
    standing,
    strongest,
)
from corral.scheduler.sets import Cards, Column, bits, indices, members_of, reaching
from corral.scheduler.snapshot import Line, Placement, Snapshot, Waiting

FEW = 12
"""So many kinds of room are asked for; then it is quicker to compare candidates one by one, if they
are no more than that."""


class Able:
    """Who can run a line's shape, and how far its search has come."""

    __slots__ = (
        "ahead",
        "alike",
        "asked",
        "behind",
        "card",
        "cards",
        "count",
        "fit",
        "key",
        "known",
        "models",
        "said",
        "seconds",
        "wanted",
        "who",
    )

    def __init__(
        self, needs: Needs, wanted: Purpose, who: int, fitting: int, suited: int, cards: list[Cards]
    ) -> None:
        self.wanted = wanted
        self.asked = needs.cpus, needs.memory_gb, 10 if needs.gpus else needs.gpu_tenths
        """Processors, memory, tenths of a card."""
        self.who, self.fit, self.behind = who, who & fitting, who & suited
        self.count = who.bit_count()
        self.cards = cards
        """Best first."""
        self.card, self.ahead = 0, 0
        self.key: tuple[float, float] | None = None
        self.alike: Mapping[tuple[float, float] | None, int] = {}
        """The workers of the card it has come to, by how they stand."""
        self.known = 0
        """Those that did such work before."""
        self.seconds: dict[int, float] = {}
        """How long it took there, where there is a choice."""
        self.models = needs.models
        self.said: tuple[dict[Size, str], ...] = ({}, {}, {})
        """What is said of a choice: by how far its models are, and the size of who was chosen."""

    def __bool__(self) -> bool:
        return self.count > 0


Size = tuple[str, float, float]
"""What a worker is to all work alike: its class, its weight, its largest card."""
KindAhead = tuple[int, int, int]
"""How many go ahead of a processor; and of what kind of cards, where work with models waits for
them."""
FRESH = (0.0, -1.0)
"""The standing of a worker that holds nothing."""


class Columns:
    """The workers of a decision, as sets."""

    def __init__(self, world: Snapshot) -> None:
        self._seats = sorted(world.seats, key=lambda seat: seat.worker.id)
        self._workers = [seat.worker for seat in self._seats]
        self._ids_of = [one.id for one in self._workers]
        self._rooms: list[Room | None] = [
            Room(seat.worker, seat.held) if seat.held else None for seat in self._seats
        ]
        self._backward = self._workers[::-1]
        self._present = bits([one.present(world.now) for one in reversed(self._seats)])
        self._on_probe = 0
        if any(seat.circuit is not CLOSED for seat in self._seats):
            self._on_probe = bits([one.on_probe(world.now) for one in reversed(self._seats)])
        self._shared = [index for index, one in enumerate(self._workers) if one.taken]
        """Whose GPUs others use too."""
        self._now = world.now
        self._know(world.lines)
        self._measure(world.lines)
        self._models = Models(world.lines, self._workers, self._rooms, self._by_card())
        self._models.able = self._able_beside_others
        self._orders: dict[Purpose, tuple[int, list[Cards]]] = {}
        count = world.keep_for_interactive
        self._kept = self._ids(strongest(world.seats, count, world.now)) if count else 0

    # --- what never changes ---

    def _know(self, lines: Sequence[Line]) -> None:
        workers, backward = self._workers, self._backward
        shapes = [line.shape for line in lines]
        needs = [shape.needs for shape in shapes]
        self._everyone = (1 << len(workers)) - 1
        self._cpus = reaching(
            [one.capabilities.cpus + SLACK for one in workers], (one.cpus for one in needs)
        )
        self._memory = reaching(
            [one.capabilities.memory_gb + SLACK for one in workers],
            (one.memory_gb for one in needs),
        )
        self._workloads = {
            workload: bits([workload in one.capabilities.workloads for one in backward])
            for workload in {shape.workload for shape in shapes}
        }
        self._named = self._by_name({one.worker for one in needs} - {"auto", "local"})
        self._local = bits([one.local for one in backward])
        self._reserved = bits([one.capabilities.reserved_for != "" for one in backward])
        classes = [one.capabilities.suits for one in backward]
        self._classes: dict[str, int] = {
            suits: bits([one == suits for one in classes]) for suits in set(classes)
        }
        self._labels = self._by_label({label for one in needs for label in one.labels})
        self._places: dict[str, int] = {}
        """By id, where somebody asks for it."""
        if any(shape.avoid for shape in shapes) or any(line.paces for line in lines):
            self._places = {one.id: index for index, one in enumerate(workers)}
        self._vram: dict[int, tuple[dict[float, int], dict[float, int]]] = {}
        for count in {one.gpus or 1 for one in needs if one.wants_gpu}:
            asking = [shape for shape in shapes if (shape.needs.gpus or 1) == count]
            sizes = [_nth_card(one, count) for one in workers]
            self._vram[count] = (
                reaching(sizes, (shape.needs.vram_gb for shape in asking)),
                reaching(sizes, (shape.above_vram_gb for shape in asking), beyond=True),
            )

    def _by_name(self, wanted: set[str]) -> dict[str, int]:
        found = dict.fromkeys(wanted, 0)
        if wanted:
            for index, worker in enumerate(self._workers):
                for name in (worker.id, worker.name):
                    if name in wanted:
                        found[name] |= 1 << index
        return found

    def _ids(self, wanted: Collection[str]) -> int:
        return bits([one.id in wanted for one in self._backward])

    def _by_label(self, wanted: set[str]) -> dict[str, int]:
        """Who has a label, by itself or with a value."""
        found = {label: bytearray(len(self._workers)) for label in wanted}
        with_any_value = any("=" not in label for label in wanted)
        if wanted:
            for index, worker in enumerate(self._backward):
                for have in worker.capabilities.labels:
                    if have in found:
                        found[have][index] = 1
                    if with_any_value and (key := have.partition("=")[0]) in found:
                        found[key][index] = 1
        return {label: bits(flags) for label, flags in found.items()}

    def _able(self, shape: Shape) -> int:
        """As `refuse_ever`, of all workers at once."""
        needs = shape.needs
        who = self._workloads[shape.workload] & self._cpus[needs.cpus]
        who &= self._memory[needs.memory_gb]
        if needs.worker != "auto":
            who &= self._local if needs.worker == "local" else self._named[needs.worker]
        for label in needs.labels:
            who &= self._labels[label]
        for avoided in shape.avoid:
            if avoided in self._places:
                who &= ~(1 << self._places[avoided])
        if shape.queue_class is not QueueClass.INTERACTIVE:
            who &= ~self._reserved
        if needs.models:
            who &= self._models.possible(needs.models)
        if needs.wants_gpu:
            who &= ~self._classes.get("cpu-only", 0)
            enough, beyond = self._vram[needs.gpus or 1]
            who &= enough[needs.vram_gb] & beyond[shape.above_vram_gb]
        return who

    # --- what shrinks ---

    def _measure(self, lines: Sequence[Line]) -> None:
        """What is free now, and where everybody stands."""
        needs = [line.shape.needs for line in lines]
        cans = [one.capabilities for one in self._workers]
        cpus = [one.cpus for one in cans]
        memory = [one.memory_gb for one in cans]
        whole = [len(one.gpus) for one in cans]
        share = [10 if one else 0 for one in whole]
        self._ahead, without_gpu = [0] * len(cans), [0] * len(cans)
        for index, room in enumerate(self._rooms):
            if room is not None:
                free, tenths = room.capacity, room.capacity.tenths.values()
                cpus[index], memory[index] = free.cpus, free.memory_gb
                share[index] = max(tenths, default=0)
                whole[index] = sum(one == 10 for one in tenths)
                self._ahead[index] = room.ahead
                without_gpu[index] = room.ahead_without_gpu
        self._cpus_now, self._memory_now, self._tenths_now = cpus, memory, share
        """What is left of a plain worker: one with a card at most, on which nothing waits."""
        self._cpus_at_all = [max(can.cpus, 0.1) for can in cans]
        self._plain = [
            one <= 1 and not now
            for one, now in zip(map(len, (can.gpus for can in cans)), self._ahead, strict=True)
        ]
        for index in (*self._shared, *indices(self._on_probe)):
            self._plain[index] = False  # others have a say there
        self._free_cpus = Column([one + SLACK for one in cpus], (one.cpus for one in needs))
        self._free_memory = Column(
            [one + SLACK for one in memory], (one.memory_gb for one in needs)
        )
        self._share = Column(share, (one.gpu_tenths for one in needs))
        self._whole = Column(whole, (one.gpus for one in needs))
        self._calm = bits([not one for one in reversed(self._ahead)])
        self._calm_without_gpu = bits([not one for one in reversed(without_gpu)])
        self._queues: dict[int, int] = {}
        for length in set(self._ahead):
            self._queues[length] = bits([one == length for one in reversed(self._ahead)])
        self._open = {kind: self._takers(kind) for kind in set(map(_kind_ahead, lines))}
        self._sizes = sizes = [(one.suits, one.weight, biggest_card(one)) for one in cans]
        self._cards: dict[Size, Cards] = {size: Cards() for size in set(sizes)}
        self._card_of = [self._cards[size] for size in sizes]
        self._keys: list[tuple[float, float] | None]
        alike: dict[tuple[Size, tuple[float, float]], list[int]] = {}
        fresh: dict[Size, list[int]] = {size: [] for size in self._cards}
        self._keys = [FRESH] * len(cans)
        for index, room in enumerate(self._rooms):
            if room is None and cpus[index] >= 0.1:
                fresh[sizes[index]].append(index)
            else:
                key = standing(cans[index], self._ahead[index], cpus[index])
                self._keys[index] = key
                alike.setdefault((sizes[index], key), []).append(index)
        for size, members in fresh.items():
            if members:
                alike.setdefault((size, FRESH), []).extend(members)
        for (size, key), members in alike.items():
            cards = self._cards[size]
            who = members_of(sorted(members))
            cards.kinds[key] = who
            cards.everyone |= who
            cards.keys.append(key)
        for cards in self._cards.values():
            cards.keys.sort()

    def _takers(self, kind: KindAhead) -> int:
        """Who takes one more ahead of this kind."""
        each, gpus, tenths = kind
        ahead = self._ahead[::-1]
        cans = [one.capabilities for one in self._backward]
        who = bits(
            [
                now < can.ahead and now < each * (int(can.cpus) or 1)
                for can, now in zip(cans, ahead, strict=True)
            ]
        )
        if gpus or tenths:
            cards = [len(can.gpus) // (gpus or 1) * (10 // (tenths or 10)) or 1 for can in cans]
            who &= bits([now < each * one for now, one in zip(ahead, cards, strict=True)])
        return who

    def _by_card(self) -> dict[float, int]:
        """Everybody by the largest card."""
        found: dict[float, int] = {}
        for (_, _, card), cards in self._cards.items():
            found[card] = found.get(card, 0) | cards.everyone
        return found

    def _move(self, index: int, bit: int, room: Room | None) -> None:
        """To where it stands now; without a room: nobody needs as little as it has left."""
        cards, old = self._card_of[index], self._keys[index]
        if old is None:
            return
        if room is None:
            cards.remove(old, bit)
            cards.everyone ^= bit
            self._keys[index] = None
            return
        key = standing(room.worker.capabilities, room.ahead, room.capacity.cpus)
        if key != old:
            cards.remove(old, bit)
            cards.add(key, bit)
            self._keys[index] = key

    # --- what a decision asks ---

    def could(self, shape: Shape) -> bool:
        """Whether any known worker, asleep or not, could run it."""
        return self._able(shape) != 0

    def able(self, line: Line, *, turn: bool = False) -> Able:
        shape = line.shape
        who = self._able_beside_others(shape) & self._present
        if self._kept and not turn and shape.queue_class is QueueClass.BATCH:
            who &= ~self._kept
        wanted = purpose(shape)
        suited, cards = self._order(wanted)
        fitting = self._fitting(shape.needs)
        able = Able(shape.needs, wanted, who, fitting, suited & ~self._on_probe, cards)
        places = self._places
        if known := sorted([places[worker] for worker in line.paces if worker in places]):
            able.known = members_of(known)
            if able.count > 1:
                ids = self._ids_of
                able.seconds = {index: line.paces[ids[index]][0] for index in known}
        return able

    def _order(self, wanted: Purpose) -> tuple[int, list[Cards]]:
        """Whom such work may wait on, and everybody in the order in which it likes them."""
        if wanted not in self._orders:
            suited = 0
            for suits, who in self._classes.items():
                if misfit(wanted, suits) <= NEUTRAL:
                    suited |= who
            sizes = sorted(self._cards, key=lambda one: (misfit(wanted, one[0]), -one[1], one[2]))
            self._orders[wanted] = suited, [self._cards[size] for size in sizes]
        return self._orders[wanted]

    def _able_beside_others(self, shape: Shape) -> int:
        """Without those where processes that are not ours leave too little for it."""
        who = self._able(shape)
        if shape.needs.wants_gpu:
            for index in self._shared:
                if who >> index & 1 and refuse_beside_others(shape, self._workers[index]):
                    who ^= 1 << index
        return who

    def keep(self, line: Line, able: Able) -> str:
        """The first of them takes nothing else in this decision, or the best to load its models."""
        first = able.who & -able.who
        if line.shape.needs.models:
            first = self._models.emptied_first(line.shape, able.who)
        self._present &= ~first
        return self._workers[first.bit_length() - 1].id

    def place(
        self, line: Line, waiting: Waiting, able: Able, *, ahead: bool, turn: bool = False
    ) -> Placement | None:
        """`able.fit` may still name some that others filled meanwhile: whoever would be chosen is
        asked, and only if it has no room any more the rest of them are."""
        if able.models:
            return self._place_with_models(line, waiting, able, ahead=ahead, turn=turn)
        while fit := able.fit:
            alike = fit & able.alike.get(able.key, 0)
            if not alike and not (alike := self._next_alike(able)):
                break
            bit = self._quickest(line, able, alike) if alike & able.known else alike & -alike
            index = bit.bit_length() - 1
            if self._plain[index]:
                why = self._take_plainly(index, bit, able)
            else:
                why = self._take_room(line, able, index, bit)
            if why:
                return Placement(waiting.job, waiting.attempt + 1, self._ids_of[index], why)
            able.fit = (fit ^ bit) & self._fitting(line.shape.needs)
        return self._place_ahead(line, waiting, able) if ahead else None

    def _place_with_models(
        self, line: Line, waiting: Waiting, able: Able, *, ahead: bool, turn: bool
    ) -> Placement | None:
        """Nothing of the search is kept for the next of the line: what is loaded has changed."""
        shape, who = line.shape, able.who
        if not turn:
            who = self._models.willing(shape, self._now - waiting.since, who)
        models = able.models
        able.fit &= self._fitting(shape.needs)
        while free := who & able.fit:
            some, missing = self._models.nearest(models, free)
            index, bit = self._best_of(line, some, able)
            if self._plain[index]:
                why = self._take_plainly(index, bit, able, missing)
            else:
                why = self._take_room(line, able, index, bit, missing)
            if why:
                self._models.load(shape, index, bit)
                return Placement(waiting.job, waiting.attempt + 1, self._ids_of[index], why)
            able.fit ^= bit
        behind = who & able.behind & self._open[_kind_ahead(line)] if ahead else 0
        if not behind:
            return None
        some, missing = self._models.nearest(models, behind)
        shortest = next(found for n in sorted(self._queues) if (found := some & self._queues[n]))
        bit = shortest & -shortest
        index = bit.bit_length() - 1
        room = self._room(index)
        why = chosen(able.count) + of_models(models, missing) + ahead_of(room)
        self._send_ahead(index, bit, room, shape.needs)
        self._models.load(shape, index, bit)
        return Placement(waiting.job, waiting.attempt + 1, room.worker.id, why, ahead=True)

    def _best_of(self, line: Line, some: int, able: Able) -> tuple[int, int]:
        """Of these the one to prefer, and its bit. Everybody with room stands somewhere."""
        while not able.fit & able.cards[able.card].everyone:
            able.card += 1  # whoever had room there has none any more
        for cards in islice(able.cards, able.card, None):
            if found := some & cards.everyone:
                key = self._first_key(cards, found)
                alike = found & cards.kinds[key]
                bit = self._quickest(line, able, alike) if alike & able.known else alike & -alike
                return bit.bit_length() - 1, bit
        raise AssertionError("somebody with room stands nowhere")

    def _take_room(self, line: Line, able: Able, index: int, bit: int, missing: int = 0) -> str:
        """The reason why it was chosen; nothing where it is full."""
        shape, room = line.shape, self._room(index)
        if able.models:
            room.models = self._models.having[index]
        shut = room.closed or room.blocked(shape.needs)
        holding = None if shut else room.fits_now(shape)
        if holding is None:
            return ""
        why = self._why(line, able, index, room, missing)
        self._take(index, bit, room, holding)
        return why

    def _why(self, line: Line, able: Able, index: int, room: Room, missing: int = 0) -> str:
        """As `reason`."""
        said = self._said(able, index, missing)
        if index in able.seconds:
            said += of_pace(able.seconds[index])
        return said + free_there(room, cards=not able.wanted[2])

    def _said(self, able: Able, index: int, missing: int = 0) -> str:
        """The part of a `reason` that is the same for all workers of one size."""
        size = self._sizes[index]
        said = able.said[missing].get(size)
        if said is None:
            said = chosen(able.count)
            if able.models:
                said += of_models(able.models, missing)
            if able.count > 1:
                said += liked(able.wanted, *size)
            able.said[missing][size] = said
        return said

    def _take_plainly(self, index: int, bit: int, able: Able, missing: int = 0) -> str:
        """Room.fits_now, Capacity.take and `reason` of a plain worker; nothing where it is full.
        That its card is large enough is known: it is able."""
        asked_cpus, asked_memory, asked_tenths = able.asked
        cpus, memory = self._cpus_now[index], self._memory_now[index]
        tenths = self._tenths_now[index]
        if (
            asked_cpus > cpus + SLACK
            or asked_memory > memory + SLACK
            or (asked_tenths and tenths < asked_tenths)
        ):
            return ""
        said = able.said[missing].get(self._sizes[index]) or self._said(able, index, missing)
        if index in able.seconds:
            said += of_pace(able.seconds[index])
        why = said + free_words(cpus, int(tenths == 10) if asked_tenths else -1)
        self._cpus_now[index] = cpus = cpus - asked_cpus
        self._memory_now[index] = memory = memory - asked_memory
        if asked_tenths:
            self._tenths_now[index] = tenths = tenths - asked_tenths
        cards, old = self._card_of[index], self._keys[index]
        assert old is not None
        cards.remove(old, bit)
        if not self._free_cpus.fall(index, cpus + SLACK, bit):
            cards.everyone ^= bit  # nobody asks what else it has
            self._keys[index] = None
            return why
        if asked_memory:
            self._free_memory.fall(index, memory + SLACK, bit)
        if asked_tenths:
            self._share.fall(index, tenths, bit)
            self._whole.fall(index, 0, bit)
        self._keys[index] = key = (0, -cpus / self._cpus_at_all[index])
        cards.add(key, bit)
        return why

    def _take(self, index: int, bit: int, room: Room, holding: Holding) -> None:
        capacity = room.capacity
        capacity.take(holding)
        if not self._free_cpus.fall(index, capacity.cpus + SLACK, bit):
            self._move(index, bit, None)  # nobody asks what else it has
            return
        if holding.memory_gb:
            self._free_memory.fall(index, capacity.memory_gb + SLACK, bit)
        if holding.devices:
            tenths = list(capacity.tenths.values())
            self._share.fall(index, max(tenths), bit)
            self._whole.fall(index, tenths.count(10), bit)
        self._move(index, bit, room)
        if self._on_probe & bit:
            room.probe()
            self._present &= ~bit

    def _place_ahead(self, line: Line, waiting: Waiting, able: Able) -> Placement | None:
        behind = able.behind & self._open[_kind_ahead(line)]
        if not behind:
            return None
        while not (shortest := behind & self._queues.get(able.ahead, 0)):
            able.ahead += 1
        bit = shortest & -shortest
        index = bit.bit_length() - 1
        room = self._room(index)
        why = chosen(able.count) + ahead_of(room)
        self._send_ahead(index, bit, room, line.shape.needs)
        return Placement(waiting.job, waiting.attempt + 1, room.worker.id, why, ahead=True)

    def _send_ahead(self, index: int, bit: int, room: Room, needs: Needs) -> None:
        self._queues[room.ahead] ^= bit
        room.send_ahead(needs)
        self._ahead[index] = room.ahead
        self._queues[room.ahead] = self._queues.get(room.ahead, 0) | bit
        if self._calm & bit:
            self._calm ^= bit
        if room.ahead_without_gpu and self._calm_without_gpu & bit:
            self._calm_without_gpu ^= bit
        for kind, who in self._open.items():
            if who & bit and room.ahead >= _takes_ahead(room.worker.capabilities, kind):
                self._open[kind] = who ^ bit
        self._move(index, bit, room)

    def _fitting(self, needs: Needs) -> int:
        """Who has room now, as far as sums can tell."""
        who = self._free_cpus[needs.cpus] & self._free_memory[needs.memory_gb]
        if needs.gpus:
            return who & self._whole[needs.gpus] & self._calm
        if needs.gpu_tenths:
            return who & self._share[needs.gpu_tenths] & self._calm
        return who & self._calm_without_gpu

    def _quickest(self, line: Line, able: Able, alike: int) -> int:
        """The bit of the one that did such work quickest, then last; strangers are average."""
        if not alike & (alike - 1):
            return alike  # the only one
        met = alike & able.known
        found = [(pace(line, self._ids_of[index]), index) for index in indices(met)]
        if strangers := alike ^ met:
            found.append((UNKNOWN, (strangers & -strangers).bit_length() - 1))
        return 1 << min(found)[1]

    def _next_alike(self, able: Able) -> int:
        """Of those that fit the ones to prefer, who all stand alike; 0 where all are full."""
        fit, key = able.fit, able.key
        while not (found := fit & able.cards[able.card].everyone):
            able.card, key = able.card + 1, None
            if able.card == len(able.cards):
                able.fit = 0
                return 0
        cards = able.cards[able.card]
        able.alike = cards.kinds
        able.key = self._first_key(cards, found, key)
        return found & cards.kinds[able.key]

    def _first_key(
        self, cards: Cards, found: int, after: tuple[float, float] | None = None
    ) -> tuple[float, float]:
        """The best standing among these; none is better than `after`."""
        keys, kinds = cards.keys, cards.kinds
        number = 0 if after is None else bisect_left(keys, after)
        for key in islice(keys, number, number + FEW):
            if found & kinds[key]:
                return key
        if found.bit_count() <= FEW:
            return min(key for key in map(self._keys.__getitem__, indices(found)) if key)
        number += FEW
        while not found & kinds[keys[number]]:
            number += 1
        return keys[number]

    def _room(self, index: int) -> Room:
        room = self._rooms[index]
        if room is None:
            room = self._rooms[index] = Room(self._workers[index])
        if self._plain[index]:
            self._plain[index] = False
            free = room.capacity
            free.cpus, free.memory_gb = self._cpus_now[index], self._memory_now[index]
            for gpu in free.gpus:
                free.tenths[gpu.uuid] = self._tenths_now[index]
        return room


def _kind_ahead(line: Line) -> KindAhead:
    needs, each = line.shape.needs, ahead_for(line.typical_s)
    return (each, needs.gpus, needs.gpu_tenths) if needs.models else (each, 0, 0)


def _takes_ahead(can: Capabilities, kind: KindAhead) -> int:
    each, gpus, tenths = kind
    if gpus or tenths:
        return ahead_of_cards(can, each, gpus, tenths)
    return ahead_limit(can, each)


def _nth_card(worker: Worker, count: int) -> float:
    """The VRAM of its largest card, or of the second largest and so on; below zero: none."""
    gpus = worker.capabilities.gpus
    if len(gpus) < count:
        return -1.0
    if count == 1 == len(gpus):
        return gpus[0].vram_gb
    return sorted((gpu.vram_gb for gpu in gpus), reverse=True)[count - 1]
