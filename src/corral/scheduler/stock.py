"""What is left of many workers while a decision is made: `Room`, of all of them at once.

Resources only shrink: whoever left a set does not come back, and whoever stands worse does not
stand better again, so no line looks twice at what it passed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corral.core.job import Needs, Shape
from corral.core.worker import SLACK, Capacity, Worker, stays_behind
from corral.scheduler.fit import MOST_AHEAD, KindAhead, Room, ahead_limit, kind_ahead
from corral.scheduler.rank import free_words
from corral.scheduler.sets import Cards, Column, Standing, bits, members_of
from corral.scheduler.snapshot import Line

FRESH: Standing = (0, -1.0)
"""The standing of a worker that holds nothing."""


class Stock:
    def __init__(
        self,
        lines: Sequence[Line],
        workers: Sequence[Worker],
        rooms: Mapping[int, Room],
        groups: Sequence[Cards],
        free: tuple[Column, Column],
        on_probe: Sequence[int],
    ) -> None:
        self._workers = workers
        self.left_ahead = MOST_AHEAD
        cans = [one.capabilities for one in workers]
        self._cpus = [can.cpus for can in cans]
        self._cpus_at_all = [can.cpus if can.cpus > 0.1 else 0.1 for can in cans]
        self._memory = [can.memory_gb for can in cans]
        self._whole = [len(can.gpus) for can in cans]
        """Cards of which nothing is taken."""
        self._tenths = [10 if one else 0 for one in self._whole]
        """What is left of the card that has most left."""
        self.ahead, self._ahead_without_gpu = [0] * len(cans), [0] * len(cans)
        self._capacities: dict[int, Capacity] = {}
        """Of those where a sum does not tell what fits: they have several cards, or share them."""
        self._apart = [one > 1 for one in self._whole]
        """Whether one is asked by itself, in its own words."""
        self._on_probe = frozenset(on_probe)
        self.probed = 0
        """Who got the one job that it takes on probe."""
        for index in on_probe:
            self._apart[index] = True
        for index, worker in enumerate(workers):
            if worker.taken:
                self._apart[index] = True
        self._free_cpus, self._free_memory = cpus, memory = free
        self._cpus_marks, self._memory_marks = cpus.least, memory.least
        needs = [line.shape.needs for line in lines]
        self._least = min((one.cpus for one in needs), default=0.0)
        """With fewer processors than that one is of no use to anybody."""
        self._useful = (1 << len(cans)) - 1
        for index, room in rooms.items():
            self._begin(index, room)
        self._shares = Column(self._tenths, (one.gpu_tenths for one in needs))
        self._wholes = Column(self._whole, (one.gpus for one in needs))
        self._stand(groups, rooms)
        self._wait_ahead(lines, rooms)

    def _begin(self, index: int, room: Room) -> None:
        free, tenths = room.capacity, room.capacity.tenths.values()
        self._cpus[index], self._memory[index] = free.cpus, free.memory_gb
        self._free_cpus.fall(index, free.cpus + SLACK)
        self._free_memory.fall(index, free.memory_gb + SLACK)
        self._tenths[index] = max(tenths, default=0)
        self._whole[index] = list(tenths).count(10)
        self.ahead[index] = room.ahead
        self._ahead_without_gpu[index] = room.ahead_without_gpu
        self._capacities[index] = free

    def _stand(self, groups: Sequence[Cards], rooms: Mapping[int, Room]) -> None:
        self.keys: list[Standing | None] = [FRESH] * len(self._workers)
        self.groups: list[Cards] = []
        """Of each worker."""
        for cards in groups:
            cards.kinds[FRESH] = cards.everyone
            cards.keys.append(FRESH)
            self.groups += [cards] * cards.everyone.bit_count()
        slight = [index for index, cpus in enumerate(self._cpus_at_all) if cpus <= 0.1]
        for index in {*rooms, *slight}:
            self._move(index)

    def _wait_ahead(self, lines: Sequence[Line], rooms: Mapping[int, Room]) -> None:
        everyone = (1 << len(self._workers)) - 1
        queues: dict[int, list[int]] = {}
        for index, room in rooms.items():
            if room.ahead:
                queues.setdefault(room.ahead, []).append(index)
        busy = [index for some in queues.values() for index in some]
        self._calm = everyone ^ members_of(busy)
        self._calm_without_gpu = everyone ^ members_of(
            index for index in busy if self._ahead_without_gpu[index]
        )
        self.queues = {length: members_of(some) for length, some in queues.items()}
        """By how many wait there."""
        self.queues[0] = self._calm
        takes = bits([one.capabilities.ahead > 0 for one in reversed(self._workers)])
        self.open: dict[KindAhead, int] = {}
        """Who takes one more ahead."""
        for kind in {kind_ahead(line.shape.needs, line.typical_s) for line in lines}:
            full = [
                index
                for index in busy
                if self.ahead[index] >= ahead_limit(self._workers[index].capabilities, kind)
            ]
            self.open[kind] = takes & ~members_of(full)

    # --- what a decision asks ---

    def fitting(self, needs: Needs) -> int:
        """Who has room now, as far as sums can tell."""
        who = self._useful & self._free_cpus[needs.cpus] & self._free_memory[needs.memory_gb]
        if needs.gpus:
            return who & self._wholes[needs.gpus] & self._calm
        if needs.gpu_tenths:
            return who & self._shares[needs.gpu_tenths] & self._calm
        return who & self._calm_without_gpu

    def take(self, index: int, shape: Shape, tenths: int) -> str:
        """Room.fits_now and Capacity.take: what was free there, in words; nothing where it is full.
        That its card is large enough is known: it is able."""
        needs = shape.needs
        cpus, memory = self._cpus[index], self._memory[index]
        if needs.cpus > cpus + SLACK or needs.memory_gb > memory + SLACK:
            return ""
        ahead = self.ahead[index]
        if ahead and stays_behind(needs, ahead, self._ahead_without_gpu[index]):
            return ""
        whole = self._whole[index] if tenths else -1
        if self._apart[index]:
            if not self._take_apart(index, shape):
                return ""
        elif tenths:
            if self._tenths[index] < tenths:
                return ""
            self._tenths[index] -= tenths
            self._whole[index] = 0
        words = free_words(cpus, whole)
        self._cpus[index] = cpus = cpus - needs.cpus
        if cpus + SLACK < self._least:
            self._leave(index)
            return words
        if cpus + SLACK < self._cpus_marks[index]:
            self._free_cpus.fall(index, cpus + SLACK)
        self._memory[index] = memory = memory - needs.memory_gb
        if memory + SLACK < self._memory_marks[index]:
            self._free_memory.fall(index, memory + SLACK)
        if tenths:
            if self._tenths[index] < self._shares.least[index]:
                self._shares.fall(index, self._tenths[index])
            if self._whole[index] < self._wholes.least[index]:
                self._wholes.fall(index, self._whole[index])
        self._move(index)
        return words

    def _take_apart(self, index: int, shape: Shape) -> bool:
        bit = 1 << index
        if self.probed & bit:
            return False
        capacity = self._capacities.get(index)
        if capacity is None:
            worker = self._workers[index]
            capacity = self._capacities[index] = Capacity(worker.capabilities, worker.taken)
        holding = capacity.fits(shape.needs, above_vram_gb=shape.above_vram_gb)
        if holding is None:
            return False
        capacity.take(holding)
        if holding.devices:
            tenths = list(capacity.tenths.values())
            self._tenths[index], self._whole[index] = max(tenths), tenths.count(10)
        if index in self._on_probe:
            self.probed |= bit
        return True

    def send_ahead(self, index: int, needs: Needs) -> None:
        bit = 1 << index
        self.left_ahead -= 1
        self.queues[self.ahead[index]] ^= bit
        self.ahead[index] = ahead = self.ahead[index] + 1
        self.queues[ahead] = self.queues.get(ahead, 0) | bit
        if ahead == 1:
            self._calm ^= bit
        if not needs.wants_gpu:
            self._ahead_without_gpu[index] += 1
            if self._ahead_without_gpu[index] == 1:
                self._calm_without_gpu ^= bit
        can = self._workers[index].capabilities
        for kind, who in self.open.items():
            if ahead >= ahead_limit(can, kind) and who & bit:
                self.open[kind] = who ^ bit
        self._move(index)

    def _move(self, index: int) -> None:
        old = self.keys[index]
        if old is None:
            return
        key = self.ahead[index], -self._cpus[index] / self._cpus_at_all[index]
        if key != old:
            cards = self.groups[index]
            bit = 1 << (index - cards.first)
            cards.remove(old, bit)
            cards.add(key, bit)
            self.keys[index] = key

    def _leave(self, index: int) -> None:
        """Nobody needs as little as it has left."""
        self._useful ^= 1 << index
        cards = self.groups[index]
        bit = 1 << (index - cards.first)
        cards.everyone ^= bit
        cards.remove(self.keys[index], bit)
        self.keys[index] = None
