"""What was learned from image jobs: rating them, and reading all that the controller kept."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any, TypedDict, Unpack

from corral.api import corral_pb2 as pb
from corral.sdk import views
from corral.sdk.connection import Connection


class Chosen(TypedDict, total=False):
    """Which records; what is left out chooses nothing."""

    since: float
    until: float
    """Ended at or after, and before (seconds since the epoch)."""
    batch: str
    run: str


class AsyncLearning:
    """`client.learning`. Reading needs the role read, rating the role submit."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def rate(self, job_id: str, rating: int, note: str = "") -> views.RatingView:
        """How good the images of a job are, 1 to 5; the last rating of a job counts."""
        request = pb.RateJobRequest(job_id=job_id, rating=max(rating, 0), note=note)
        view: views.RatingView = views.read(await self._connection.call("RateJob", request))
        return view

    async def records(self, **chosen: Unpack[Chosen]) -> AsyncIterator[dict[str, Any]]:
        """One for each image job that succeeded, in the order in which they did, with its rating
        or None."""
        async with contextlib.aclosing(self.record_lists(**chosen)) as lists:
            async for records in lists:
                for record in records:
                    yield record

    async def record_lists(
        self, **chosen: Unpack[Chosen]
    ) -> AsyncGenerator[list[dict[str, Any]], None]:
        """The same, as many at a time as arrived together."""
        async with contextlib.aclosing(self.lines(**chosen)) as chunks:
            async for chunk in chunks:
                yield [json.loads(line) for line in chunk.splitlines()]

    async def lines(self, **chosen: Unpack[Chosen]) -> AsyncGenerator[bytes, None]:
        """The same as JSON lines, many at a time."""
        request = pb.ListLearningsRequest(**chosen)
        async with contextlib.aclosing(self._connection.stream("ListLearnings", request)) as found:
            async for one in found:
                yield one.data


class Learning:
    """What was learned. See AsyncLearning for what each method does."""

    def __init__(self, learning: AsyncLearning, bridge: Any) -> None:
        self._learning, self._bridge = learning, bridge

    def rate(self, job_id: str, rating: int, note: str = "") -> views.RatingView:
        found: views.RatingView = self._bridge.call(self._learning.rate(job_id, rating, note))
        return found

    def records(self, **chosen: Unpack[Chosen]) -> Iterator[dict[str, Any]]:
        found: Iterator[dict[str, Any]] = self._bridge.each(self._learning.record_lists(**chosen))
        return found

    def lines(self, **chosen: Unpack[Chosen]) -> Iterator[bytes]:
        """JSON lines, many at a time."""

        async def chunks() -> AsyncGenerator[list[bytes], None]:
            async for chunk in self._learning.lines(**chosen):
                yield [chunk]

        found: Iterator[bytes] = self._bridge.each(chunks())
        return found
