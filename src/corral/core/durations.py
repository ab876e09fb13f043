"""How long, as people write it."""

from __future__ import annotations

import re

from corral.core.errors import InvalidJob

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds(text: str, option: str = "--duration") -> float:
    """A duration in seconds.

    >>> seconds("90"), seconds("1.5h"), seconds("2d")
    (90.0, 5400.0, 172800.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd]?)", text.strip())
    if not found:
        raise InvalidJob(f"{option} is a number of seconds, or 90s, 30m, 12h, 2d; got {text!r}.")
    return float(found[1]) * _UNITS[found[2]]
