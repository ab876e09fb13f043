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


def span(took_s: float) -> str:
    """A duration as people say it.

    >>> span(0.0123), span(75), span(7300), span(200_000)
    ('0.01 s', '75 s', '2.0 h', '2.3 d')
    """
    if took_s < 10:
        return f"{took_s:.2f} s"
    if took_s < 120:
        return f"{took_s:.0f} s"
    for size, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if took_s >= size * 2 or name == "min":
            break
    return f"{took_s / size:.1f} {name}"
