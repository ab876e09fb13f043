"""Who could ever run a shape, busy or not: `refuse_ever`, of many workers at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from corral.core.job import Needs, QueueClass, Shape
from corral.core.worker import Capabilities, Worker, closed_path, is_called
from corral.scheduler.sets import bits, reaching, who_has
from corral.scheduler.snapshot import Line


class Abilities:
    """What never changes while a decision is made: sets of workers for all that a shape may ask."""

    def __init__(
        self,
        lines: Sequence[Line],
        workers: Sequence[Worker],
        places: Mapping[str, int],
        cards_gb: Sequence[float],
        cpus: Mapping[float, int],
        memory: Mapping[float, int],
    ) -> None:
        shapes = [line.shape for line in lines]
        needs = [shape.needs for shape in shapes]
        backward = workers[::-1]
        cans = [one.capabilities for one in backward]
        self._places = places
        self._cpus, self._memory = cpus, memory
        """Who has as much as that at all."""
        self._for_gpus = bits([can.suits != "cpu-only" for can in cans])
        self._workloads = {
            workload: bits([workload in can.workloads for can in cans])
            for workload in {shape.workload for shape in shapes}
        }
        self._tasks = {
            task: bits([task in can.task_types for can in cans])
            for task in {one.task for one in needs if one.task}
        }
        names = {one.worker for one in needs} - {"auto", "local"}
        self._named = who_has(names, [(one.id, one.name) for one in backward]) if names else {}
        self._local = bits([one.local for one in backward])
        self._open = bits([not can.reserved_for for can in cans])
        self._labels = _by_label({label for one in needs for label in one.labels}, cans)
        self._readers = {
            asked: bits(
                [not closed_path(asked, one.capabilities, local=one.local) for one in backward]
            )
            for asked in set(map(_paths, needs))
            if asked.read
        }
        self._vram: dict[tuple[int, str], tuple[dict[float, int], dict[float, int]]] = {}
        for cards in {_cards(one) for one in needs if one.wants_gpu}:
            asking = [shape for shape in shapes if _cards(shape.needs) == cards]
            sizes = [
                (card if can.gpus else -1.0) if cards == (1, "") else _nth_card(can, *cards)
                for can, card in zip(reversed(cans), cards_gb, strict=True)
            ]
            self._vram[cards] = (
                reaching(sizes, (shape.needs.vram_gb for shape in asking)),
                reaching(sizes, (shape.above_vram_gb for shape in asking), beyond=True),
            )

    def able(self, shape: Shape) -> int:
        needs = shape.needs
        who = self._workloads[shape.workload] & self._cpus[needs.cpus]
        who &= self._memory[needs.memory_gb]
        if needs.task:
            who &= self._tasks[needs.task]
        if needs.worker != "auto":
            who &= self._local if needs.worker == "local" else self._named[needs.worker]
        if needs.read:
            who &= self._readers[_paths(needs)]
        for label in needs.labels:
            who &= self._labels[label]
        for avoided in shape.avoid:
            if avoided in self._places:
                who &= ~(1 << self._places[avoided])
        if shape.queue_class is not QueueClass.INTERACTIVE:
            who &= self._open
        if needs.wants_gpu:
            enough, beyond = self._vram[_cards(needs)]
            who &= self._for_gpus & enough[needs.vram_gb] & beyond[shape.above_vram_gb]
        return who


def _by_label(wanted: set[str], backward: Sequence[Capabilities]) -> dict[str, int]:
    """Who has a label, by itself or with a value."""
    found = {label: bytearray(len(backward)) for label in wanted}
    with_any_value = any("=" not in label for label in wanted)
    if wanted:
        for index, can in enumerate(backward):
            for have in can.labels:
                if have in found:
                    found[have][index] = 1
                if with_any_value and (key := have.partition("=")[0]) in found:
                    found[key][index] = 1
    return {label: bits(flags) for label, flags in found.items()}


def _paths(needs: Needs) -> Needs:
    """Only what it wants to read."""
    return Needs(read=needs.read, owned=needs.owned)


def _cards(needs: Needs) -> tuple[int, str]:
    """How many cards it wants, of which name."""
    return needs.gpus or 1, needs.gpu


def _nth_card(can: Capabilities, count: int, name: str) -> float:
    """The VRAM of the largest card of that name, or of the second and so on; below zero: none."""
    sizes = [gpu.vram_gb for gpu in can.gpus if not name or is_called(gpu.name, name)]
    return sorted(sizes, reverse=True)[count - 1] if len(sizes) >= count else -1.0
