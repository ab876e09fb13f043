"""`[[slot]]`s in prompts, filled from lists of values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from random import Random

from msgspec.structs import replace

from corral.pipelines.mistakes import invalid, near, suggestion
from corral.pipelines.plan import Matrix, Row, Word

_SLOT = re.compile(r"\[\[([^\[\]]+)\]\]")
LONGEST = 20_000


class Fill:
    """The matrix of a plan on its rows. Nothing is combined before it is asked for."""

    def __init__(
        self, rows: Sequence[Row], matrix: Matrix | None, rng_seed: int, where: str
    ) -> None:
        self._rows = rows
        self._matrix = matrix or Matrix()
        self._rng_seed = rng_seed
        self._where = [f"{where}[{number}]" for number in range(len(rows))]
        found = [_found(row) for row in rows]
        self.unfilled = [
            spot for spot, names in zip(self._where, found, strict=True) if names and not matrix
        ]
        """Prompts with what might be slots, without a matrix: to WebUI [[word]] has less weight."""
        self._used = [
            _ordered(names, spot, self._matrix) if matrix else []
            for spot, names in zip(self._where, found, strict=True)
        ]

    @property
    def count(self) -> int:
        if self._matrix.mode != "fanout":
            return len(self._rows)
        return sum(self._combinations(names) for names in self._used)

    @property
    def idle(self) -> list[str]:
        """Slots that no prompt has."""
        used = {name for names in self._used for name in names}
        return [name for name in self._matrix.slots if name not in used]

    def __iter__(self) -> Iterator[tuple[str, Row]]:
        """Each with the place of the prompt that it is from."""
        dice = Random(self._rng_seed)  # noqa: S311 (to be drawn again)
        for number, (row, names) in enumerate(zip(self._rows, self._used, strict=True)):
            count = self._combinations(names)
            match self._matrix.mode:
                case "fanout":
                    picked: Sequence[int] = range(count)
                case "sequential":
                    picked = (min(number, count - 1),)
                case "rotate":
                    picked = (number % count,)
                case "random":
                    picked = (dice.randrange(count),)
            for place in picked:
                yield self._where[number], self._filled(row, self._where[number], names, place)

    def _combinations(self, names: Sequence[str]) -> int:
        count = math.prod(len(self._matrix.slots[name]) for name in names)
        return min(count, self._matrix.limit or count)

    def _filled(self, row: Row, where: str, names: Sequence[str], place: int) -> Row:
        if not names:
            return row
        values: dict[str, Word] = {}
        for name in reversed(names):  # the last slot turns fastest
            choices = self._matrix.slots[name]
            place, which = divmod(place, len(choices))
            values[name] = choices[which]
        filled = [
            _SLOT.sub(lambda found: str(values[found[1].strip()]), text)
            for text in (row.positive, row.negative)
        ]
        if max(map(len, filled)) > LONGEST:
            raise invalid(
                where,
                f"filled in, it is longer than {LONGEST:,} characters. Shorten the values.",
            )
        return replace(row, positive=filled[0], negative=filled[1])


def _found(row: Row) -> set[str]:
    if "[[" not in row.positive and "[[" not in row.negative:
        return set()
    names = (*_SLOT.findall(row.positive), *_SLOT.findall(row.negative))
    return {name.strip() for name in names}


def _ordered(found: set[str], where: str, matrix: Matrix) -> list[str]:
    """The slots of one prompt, in the order of the matrix."""
    known = list(matrix.slots)
    for name in sorted(found - set(known)):
        otherwise = "Add its values under `matrix.slots`."
        raise invalid(
            where,
            f"the slot [[{name}]] has no values. {suggestion(name, known, otherwise)}",
            near=near(name, known),
        )
    return [name for name in known if name in found]
