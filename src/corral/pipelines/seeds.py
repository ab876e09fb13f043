"""Seeds that nobody gave, drawn from the batch's own: the same again for the same plan."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from corral.pipelines.mistakes import invalid

SPACE = 2**32
"""A seed is less than this."""


def stream(seed: int, purpose: str) -> Random:
    """Each purpose draws for itself, so that giving one seed changes no other."""
    return Random(f"{seed}/{purpose}")  # noqa: S311 (to be drawn again, not to be secret)


def drawn(seed: int, purpose: str, below: int = SPACE) -> int:
    return stream(seed, purpose).randrange(below)


def apart(seed: int, purpose: str, width: int) -> Iterator[int]:
    """Endless, and no two nearer than `width`: a record of several images takes as many seeds."""
    dice, taken = stream(seed, purpose), set[int]()
    while True:
        place = dice.randrange(SPACE // width)
        if place not in taken:
            taken.add(place)
            yield place * width


def given(*candidates: int | None) -> int | None:
    """The first that says which: not left out, and not the -1 that means any."""
    return next((one for one in candidates if one is not None and one >= 0), None)


class Seeds:
    """The seed of each record, by the mode of the plan's variants."""

    def __init__(
        self, batch_seed: int, mode: str, base_seed: int | None, *, variants: int, widest: int
    ) -> None:
        self._mode = mode
        self._base = given(base_seed)
        self._shared = drawn(batch_seed, "base_seed", SPACE // 2)
        self._variants = variants
        self._drawn = apart(batch_seed, "records", widest)

    def of(self, own: int | None, variant_index: int, batch_index: int, batch_size: int) -> int:
        """`own` is what its row or its settings say, where they do."""
        if self._mode == "none":
            if own is None:
                return next(self._drawn)
            base, seed = own, own + batch_index * batch_size
        else:
            base = next(one for one in (self._base, own, self._shared) if one is not None)
            seed = base + batch_index
            if self._mode == "per_variant":
                seed = base + variant_index + batch_index * self._variants
        if seed + batch_size > SPACE:
            raise invalid(
                "seed" if self._mode == "none" else "variants.base_seed",
                f"counting up from {base}, seeds grow beyond {SPACE - 1}. Take a smaller one.",
            )
        return seed
