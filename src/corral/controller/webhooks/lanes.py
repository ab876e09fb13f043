"""What one webhook has yet to be told, in order, and how long it is tried."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from msgspec import Struct

from corral.controller.webhooks.payloads import Make
from corral.core.job import Head
from corral.core.webhook import Address, address_of


class Timing(Struct, frozen=True):
    timeout_s: float = 10.0
    backoff_s: float = 1.0
    backoff_max_s: float = 300.0
    give_up_s: float = 86_400.0
    settle_s: float = 5.0
    """How long a batch must stay empty to be done: a streaming map is empty now and then."""


class Counts(Struct):
    """For whoever shows how notifying goes."""

    delivered: int = 0
    failed_tries: int = 0
    given_up: int = 0
    pending: int = 0


class Due(NamedTuple):
    """A batch that is empty, and since when nothing was added to it."""

    at: float
    seq: int
    head: Head


class Pending(NamedTuple):
    seq: int
    """The record it follows from; 0 for what is in no journal."""
    at: float
    event: str
    make: Make
    """The fields of its body: made when it is sent, since it may wait long."""


class Lane:
    """What one webhook has yet to be told, in order."""

    def __init__(self, url: str, secret: str, after: int) -> None:
        self.url, self.secret, self.after = url, secret, after
        self.address: Address = address_of(url)
        self.pending: dict[str, Pending] = {}
        self.missed = 0
        """The first failed job that found no room in memory."""
        self.task: asyncio.Task[None] | None = None

    def known_until(self) -> int | None:
        """Up to here it knows everything; None where it knows all there is."""
        waiting = [one.seq for one in self.pending.values() if one.seq]
        if self.missed:
            waiting.append(self.missed)
        return min(waiting) - 1 if waiting else None
