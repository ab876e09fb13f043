"""How many answers may stay open at once, over gRPC and REST together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from corral.core.errors import TooManyStreams


class Streams:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.open = 0

    def check(self) -> None:
        """TooManyStreams where not one more may be opened."""
        if self.open >= self._limit:
            raise TooManyStreams(
                f"{self.open:,} streams are open, as many as limits.streams allows. Close some, or "
                "ask for what you need without following it."
            )

    @contextmanager
    def one(self) -> Iterator[None]:
        """Counts an open stream while it is."""
        self.check()
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1
