"""JSON of others: what reading it can raise, and how much of it is read."""

from __future__ import annotations

import msgspec

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
