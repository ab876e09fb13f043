"""What was learned from image jobs: rating them, reading all that the controller kept, and learning
runs, which try one setting at several values."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

from corral.contract import corral_pb2 as pb
from corral.contract import views
from corral.contract.read_views import read
from corral.sdk.bridge import Bridged, bridged, one_by_one, shared_bridge
from corral.sdk.images.batches import AsyncBatchHandle, Plan
from corral.sdk.images.plan_files import read as read_plan
from corral.sdk.transport.connection import ClientCalls


class Chosen(TypedDict, total=False):
    """Which records; what is left out chooses nothing."""

    since: float
    until: float
    """Ended at or after, and before (seconds since the epoch)."""
    batch: str
    run: str


class AsyncLearning(ClientCalls):
    """`client.learning`. Reading needs the role read, rating the role submit."""

    async def rate(self, job_id: str, rating: int, note: str = "") -> views.RatingView:
        """How good the images of a job are, 1 to 5; the last rating of a job counts."""
        request = pb.RateJobRequest(job_id=job_id, rating=max(rating, 0), note=note)
        return await self._connection.ask(views.RatingView, "RateJob", request)

    async def records(self, **chosen: Unpack[Chosen]) -> AsyncIterator[dict[str, Any]]:
        """One for each image job that succeeded, in the order in which they did, with its rating
        or None."""
        async with contextlib.aclosing(self.lines(**chosen)) as chunks:
            async for chunk in chunks:
                for line in chunk.splitlines():
                    yield json.loads(line)

    async def lines(self, **chosen: Unpack[Chosen]) -> AsyncGenerator[bytes, None]:
        """The same as JSON lines, many at a time."""
        request = pb.ListLearningsRequest(**chosen)
        async with contextlib.aclosing(self._connection.stream("ListLearnings", request)) as found:
            async for one in found:
                yield one.data

    # --- learning runs ---

    async def start(self, plan: Plan, *, dry_run: bool = False) -> views.LearningRunView:
        """Submits the jobs of a learning plan as one batch; the same plan again is the same run."""
        value = dict(plan) if isinstance(plan, Mapping) else read_plan(Path(plan))
        request = pb.LearningPlan(plan=json.dumps(value).encode(), dry_run=dry_run)
        return await self._connection.ask(views.LearningRunView, "StartLearningRun", request)

    async def show(self, name: str) -> views.LearningRunView:
        """A run and what came of it until now."""
        request = pb.LearningRunRequest(name=name)
        return await self._connection.ask(views.LearningRunView, "GetLearningRun", request)

    async def runs(self) -> list[views.LearningRunView]:
        """All of them, newest last, without their results."""
        reply = await self._connection.call("ListLearningRuns", pb.ListLearningRunsRequest())
        return [read(one) for one in reply.runs]

    async def run(
        self, plan: Plan, progress: Callable[[int, int], object] = lambda done, jobs: None
    ) -> dict[str, Any]:
        """Starts a run, waits for its end and returns its result. Whoever stops waiting leaves it
        running."""
        started = await self.start(plan)
        await self.follow(started, progress)
        return (await self.show(started.name)).result or {}

    async def follow(
        self, run: views.LearningRunView, progress: Callable[[int, int], object]
    ) -> None:
        """Until all its jobs have ended; told how many have, of how many."""
        done = (run.result or {}).get("ended", 0)
        progress(done, run.jobs)
        if (run.result or {}).get("complete"):
            return
        seen = 0
        async for _ in AsyncBatchHandle(self._connection, run.batch, jobs=run.jobs).ends():
            seen += 1
            progress(max(seen, done), run.jobs)


class Learning(Bridged[AsyncLearning]):
    """`client.learning` of a Client."""

    rate = bridged(AsyncLearning.rate)
    start = bridged(AsyncLearning.start)
    show = bridged(AsyncLearning.show)
    runs = bridged(AsyncLearning.runs)
    run = bridged(AsyncLearning.run)
    follow = bridged(AsyncLearning.follow)

    def records(self, **chosen: Unpack[Chosen]) -> Iterator[dict[str, Any]]:
        """One for each image job that succeeded, with its rating or None."""
        for chunk in self.lines(**chosen):
            yield from map(json.loads, chunk.splitlines())

    def lines(self, **chosen: Unpack[Chosen]) -> Iterator[bytes]:
        """JSON lines, many at a time."""
        return shared_bridge().each(one_by_one(self._asynchronous.lines(**chosen)))
