"""Text and JSON of others, made safe to read, show and use as a name."""

from __future__ import annotations

import re

import msgspec

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


MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Beside plain mistakes in JSON: text that is no UTF-8, and brackets nested too deep."""

MOST_BOXES, MOST_VALUES = 1_000_000, 10_000_000
"""Of JSON that is read without knowing what it should be: lists and objects, and what is in them.
As many bytes of nothing but brackets would keep the process from all else for ten seconds."""


def check_size(data: bytes) -> None:
    """ValueError where there is more in it than anybody writes; brackets in texts count, too."""
    if data.count(b"[") + data.count(b"{") > MOST_BOXES or data.count(b",") > MOST_VALUES:
        most = f"{MOST_BOXES:,} lists and objects or {MOST_VALUES:,} values"
        raise ValueError(f"none with more than {most} is read")
