"""What a check found: one sentence, and the next step where there is something to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

Status = Literal["ok", "warn", "fail"]


class Finding(Struct, frozen=True):
    check: str
    status: Status
    said: str
    next: str = ""


Check = Callable[[], Iterable[Finding]]


def ok(said: str, *, check: str = "") -> Finding:
    return Finding(check, "ok", said)


def warn(said: str, next_: str, *, check: str = "") -> Finding:
    return Finding(check, "warn", said, next_)


def fail(said: str, next_: str, *, check: str = "") -> Finding:
    return Finding(check, "fail", said, next_)


def named(check: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Those that have no other name under this one."""
    return (replace(finding, check=finding.check or check) for finding in findings)


def examined(checks: Iterable[Check]) -> Iterator[Finding]:
    """Every check's findings, under its name; a check that breaks is a finding too."""
    for check in checks:
        name = check.__name__.replace("_", " ")
        try:
            yield from named(name, check())
        except Exception as error:
            said = f"could not be checked: {type(error).__name__}: {error}"
            next_ = "Look at what it says, or tell us: this check should not break."
            yield warn(said, next_, check=name)
