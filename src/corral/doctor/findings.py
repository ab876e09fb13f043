"""What a check found: one sentence, and the next step where there is something to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from msgspec import Struct

Status = Literal["ok", "warn", "fail"]


class Finding(Struct, frozen=True):
    check: str
    status: Status
    said: str
    next: str = ""


Check = Callable[[], Iterable[Finding]]


def ok(check: str, said: str) -> Finding:
    return Finding(check, "ok", said)


def warn(check: str, said: str, next_: str) -> Finding:
    return Finding(check, "warn", said, next_)


def fail(check: str, said: str, next_: str) -> Finding:
    return Finding(check, "fail", said, next_)


def examined(checks: Iterable[tuple[str, Check]]) -> Iterator[Finding]:
    """Every check in turn. One that breaks is a finding too, and ends nothing."""
    for name, check in checks:
        try:
            yield from check()
        except Exception as error:
            said = f"could not be checked: {type(error).__name__}: {error}"
            yield warn(name, said, "Look at what it says, or tell us: this check should not break.")
