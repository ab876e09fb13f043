"""The jobs of a description as one list, drawn from a seed: the same on any machine."""

from __future__ import annotations

import random

from msgspec import Struct
from msgspec.structs import replace

from corral.core.job import QueueClass
from corral.simulate.description import Description


class TracedJob(Struct, frozen=True, gc=False):
    """A job as it will turn out."""

    number: int
    at: float
    seconds: float
    """On a worker of speed 1, its model loaded."""
    model: str
    vram_gb: float
    queue_class: QueueClass
    retries: int
    fails: tuple[float, ...] = ()
    """How far each attempt gets before it fails, 0 to 1; the one after these succeeds."""

    @property
    def urgent(self) -> bool:
        return self.queue_class is QueueClass.INTERACTIVE


def draw(described: Description, seed: int) -> list[TracedJob]:
    """All jobs in the order of their arrival."""
    chance = random.Random(seed)  # noqa: S311 (a simulation, drawn again from the same seed)
    sizes = {model.name: model.vram_gb for model in described.models}
    drawn: list[TracedJob] = []
    for mix in described.jobs:
        names, weights = list(mix.models), list(mix.models.values())
        for _ in range(mix.count):
            model = chance.choices(names, weights)[0] if names else ""
            drawn.append(
                TracedJob(
                    number=0,
                    at=mix.from_s + chance.random() * mix.over_s,
                    seconds=chance.uniform(*mix.seconds),
                    model=model,
                    vram_gb=max(mix.vram_gb, sizes.get(model, 0.0)),
                    queue_class=mix.queue_class,
                    retries=mix.retries,
                    fails=_fails(chance, described.failures.attempts),
                )
            )
    chance.shuffle(drawn)  # those that arrive together are mixed
    drawn.sort(key=lambda work: work.at)
    return [replace(work, number=number) for number, work in enumerate(drawn)]


def _fails(chance: random.Random, share: float) -> tuple[float, ...]:
    found: list[float] = []
    while share and chance.random() < share:
        found.append(chance.random())
    return tuple(found)
