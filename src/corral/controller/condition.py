"""How a controller is, in one word and a sentence: the same at every door."""

from __future__ import annotations


def condition(*, stopping: bool, damage: str, full: str) -> tuple[str, str]:
    """
    >>> condition(stopping=False, damage="", full="95 % of the disk is full.")
    ('full', '95 % of the disk is full.')
    """
    word = "stopping" if stopping else "damaged" if damage else "full" if full else "ok"
    return word, " ".join(filter(None, (damage, full)))
