"""Nothing in the event loop grows with queue, batch or history: others have their turns."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from corral.controller.history.listing import Listing
from corral.controller.jobs.batches import look
from corral.core.errors import JobNotFound
from corral.core.job import State
from tests.controller.shell import function_job, shell
from tests.eventually import eventually_async

MANY = 3_010


async def turns_during(work: Coroutine[Any, Any, Any]) -> tuple[Any, int]:
    """What it returns, and how often somebody else had a turn before it did."""
    task, turns = asyncio.create_task(work), 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    return task.result(), turns


async def test_a_large_batch_is_cancelled_in_many_commits_and_all_of_it(tmp_path: Path) -> None:
    async with shell(tmp_path, workers=[]) as corral:
        waiting = [function_job(batch="b") for _ in range(MANY)]
        for start in range(0, MANY, 1000):
            await corral.queue.submit(waiting[start : start + 1000])
        alone = await corral.submit()
        commits: list[int] = []
        corral.store.committed = lambda seconds, facts: commits.append(facts)
        cancelling = asyncio.create_task(corral.queue.cancel_batch("b"))
        await eventually_async(lambda: bool(commits), "a commit")
        between = await corral.submit()
        assert not cancelling.done(), "who comes meanwhile does not wait for all of it"
        assert await cancelling == MANY
        assert max(commits) <= 1_001
        assert set(corral.store.world.heads) == {alone, between}
        assert await corral.queue.cancel_batch("b") == 0
    async with shell(tmp_path, workers=[]) as again:
        listing = Listing(again.store)
        assert (await listing.batch("b")).states == {State.CANCELLED: MANY}
        listing.close()


async def test_requests_that_come_together_share_no_more_than_so_large_a_commit(
    tmp_path: Path,
) -> None:
    async with shell(tmp_path, workers=[]) as corral:
        commits: list[int] = []
        corral.store.committed = lambda seconds, facts: commits.append(facts)
        submissions = [[function_job(str(n)) for n in range(500)] for _ in range(10)]
        answers = await asyncio.gather(*(corral.queue.submit(jobs) for jobs in submissions))
        assert len({one.job for answer in answers for one in answer}) == 5000
        assert sum(commits) == 5000
        assert max(commits) < 1_500


async def test_who_asks_about_a_large_batch_lets_others_have_their_turn(tmp_path: Path) -> None:
    async with shell(tmp_path, workers=[]) as corral:
        listing = Listing(corral.store)
        for _ in range(20):
            await corral.queue.submit([function_job(batch="b") for _ in range(1000)])
        counted, turns = await turns_during(listing.batch("b"))
        assert counted.states == {State.QUEUED: 20_000}
        assert turns > 9
        batch, turns = await turns_during(look("b", listing, corral.store.world, corral.loop))
        assert batch.counted.total == 20_000
        assert turns > 18

        async def find_nobody() -> None:
            with pytest.raises(JobNotFound):
                await corral.queue.find("zzz")

        _, turns = await turns_during(find_nobody())
        assert turns > 18
        listing.close()
