"""Text of others, made safe to read, show and use as a name; and durations as people write them."""

from __future__ import annotations

import re

from corral.core.errors import InvalidJob

DEVICES = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}
)
"""What Windows takes for a device, whatever ending it has: no file can have such a name there."""

STEERING = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""Characters that steer a terminal, or turn the direction of what is read."""
PLAIN = rf"^[^{STEERING}]*\Z"
_STEERING_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_HEX = frozenset("0123456789abcdef")


def is_digest(text: str) -> bool:
    return len(text) == 64 and set(text) <= _HEX


def printable(text: str) -> str:
    """Text of others for a terminal: what would steer it is escaped, but for newlines and tabs.

    >>> print(printable("\\x1b[2Jwiped \\u202e"))
    \\x1b[2Jwiped \\u202e
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in "\n\t" else _escaped(one) for one in text)


def printable_json(text: str) -> str:
    """The same for a JSON document, in which it stays the same value."""
    return _STEERING_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escaped(one: str) -> str:
    number = ord(one)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


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


def size_of(count: float) -> str:
    """An amount of bytes as people say it.

    >>> size_of(999), size_of(38_200), size_of(1_000_000_000)
    ('999 B', '38.2 kB', '1.0 GB')
    """
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def in_grace(worker: str, silent_s: float) -> str:
    """What an attempt waits for whose worker is away."""
    return (
        f"Nothing was heard of {worker} for {silent_s:.0f} s. It is waited for, as long as "
        "`grace_s` says; after that the attempt is lost, and the job is tried elsewhere."
    )


def gpu_words(name: str) -> list[str]:
    """What counts of a GPU's name: makers and people set spaces and capitals as they like.

    >>> gpu_words("GeForce RTX4070 Ti")
    ['geforce', 'rtx', '4070', 'ti']
    """
    return re.findall("[a-z]+|[0-9]+", name.lower())
