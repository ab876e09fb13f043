"""Committed facts, and who hears of them. What one of those raises is its own: the others hear all
the same, and nobody takes it for a failed commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog
from msgspec import Struct

from corral.core.events import Journaled
from corral.core.job import Head

log = structlog.get_logger()


class Change(Struct, frozen=True, gc=False):
    """One committed fact and the head it led to."""

    seq: int
    fact: Journaled
    head: Head


Hear = Callable[[Sequence[Change]], None]


class Listeners:
    def __init__(self) -> None:
        self._listeners: list[tuple[Hear, Hear | None]] = []

    def add(self, hear: Hear, missed: Hear | None = None) -> None:
        self._listeners.append((hear, missed))

    def tell(self, changes: Sequence[Change]) -> None:
        for hear, missed in self._listeners:
            try:
                hear(changes)
            except Exception as error:
                _log(hear, changes, error)
                if missed is not None:
                    self._catch_up(missed, changes)

    def _catch_up(self, missed: Hear, changes: Sequence[Change]) -> None:
        try:
            missed(changes)
        except Exception as error:
            _log(missed, changes, error)


def _log(hear: Hear, changes: Sequence[Change], error: Exception) -> None:
    log.error(
        "listener_failed",
        listener=getattr(hear, "__qualname__", repr(hear)),
        first_seq=changes[0].seq,
        facts=len(changes),
        exc_info=error,
    )
