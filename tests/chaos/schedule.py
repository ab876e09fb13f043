"""What goes wrong and when: a list that follows from the seed and the length alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

CONTROLLER = "controller"
HOUR_S = 3600
GAP_S = 1.3
"""Between two faults, on average."""


class Fault(NamedTuple):
    at_s: float
    kind: str
    target: str
    lasting_s: float
    """For how long, where it is something that lasts."""
    detail: float
    """A number from 0 to 1 for whatever else is left to chance."""


KINDS = {
    "wire cut both ways": (0.3, 7.0),
    "wire cut, up only": (0.3, 7.0),
    "wire cut, down only": (0.3, 7.0),
    "agent stalled": (0.3, 6.0),
    "agent killed": (0.0, 6.0),
    "job process killed": (0.0, 0.0),
    "controller stalled": (0.3, 3.0),
    "controller killed": (0.0, 2.0),
    "clock jumped": (0.0, 0.0),
    "controller lost power": (0.0, 2.0),
    "worker lost power": (0.0, 6.0),
    "connections reset": (0.0, 0.0),
    "a worker lied": (0.0, 0.0),
    "messages repeated": (1.0, 4.0),
    "messages swapped and delayed": (1.0, 4.0),
    "drained and resumed": (0.5, 3.0),
    "revoked and joined again": (0.0, 1.0),
}
"""Every kind with the shortest and the longest time it lasts."""
GRACE_S = 4.0
"""In between, so that some workers are back within it and others are not."""
ON_CONTROLLER = ("controller stalled", "controller killed", "controller lost power")
ON_ANY = ("clock jumped", "connections reset")
POWERED = "w2"
"""The worker whose disk can lose power."""
ON_THE_LAST = ("messages repeated", "messages swapped and delayed")


def schedule(seed: int, seconds: float, workers: Sequence[str]) -> list[Fault]:
    return list(_faults(random.Random(seed), seconds, workers))


def _faults(dice: random.Random, seconds: float, workers: Sequence[str]) -> Iterator[Fault]:
    at_s = 1.0
    while True:
        # Like a pack of cards: nothing is left out for long.
        for kind in dice.sample(list(KINDS), len(KINDS)):
            shortest, longest = KINDS[kind]
            target = dice.choice([*workers, CONTROLLER] if kind in ON_ANY else workers)
            if kind in ON_CONTROLLER:
                target = CONTROLLER
            elif kind in ON_THE_LAST:
                target = workers[-1]
            elif kind == "worker lost power":
                target = POWERED
            yield Fault(at_s, kind, target, dice.uniform(shortest, longest), dice.random())
            at_s += GAP_S * dice.uniform(0.3, 1.7)
            if at_s > seconds:
                return
