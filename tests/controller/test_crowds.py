"""Readers that do not read: each costs little, and all of them together nobody's answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from corral.controller.output.feed import Feed
from corral.controller.output.pages import Cursor, Seen
from corral.core.events import AttemptStarted
from corral.core.frames import OutputFrame, encode_frame
from tests.controller.shell import Shell, shell

LINES, WATCHERS = 6_000, 100


@contextlib.asynccontextmanager
async def printed(home: Path) -> AsyncIterator[tuple[Shell, str]]:
    """A job that runs and has written much."""
    async with shell(home, seconds=lambda _: 1e6) as corral:
        job = await corral.submit()
        await corral.until(job, AttemptStarted)
        line = encode_frame(OutputFrame(1.0, "stdout", "x" * 80))
        corral.spool.extend((job, 1, line, 0, 0) for _ in range(LINES))
        corral.store.recent[job].spoke = True
        corral.feed.heard(job)
        yield corral, job


async def first_output(feed: Feed, job: str) -> Sequence[Seen]:
    """What a reader is about to be sent, and does not take."""
    watching = feed.watch(job, Cursor())
    async for seen in watching:
        if seen[0].frame:
            return seen
    raise AssertionError("nothing was printed")


async def test_those_that_stopped_at_one_place_hold_one_small_page(tmp_path: Path) -> None:
    async with printed(tmp_path) as (corral, job):
        held = [await first_output(corral.feed, job) for _ in range(WATCHERS)]
        distinct = {id(page): page for page in held}.values()
        assert sum(len(seen.frame) for page in distinct for seen in page) < 8_000


async def test_in_each_turn_of_the_loop_one_of_them_reads(tmp_path: Path) -> None:
    async with printed(tmp_path) as (corral, job):
        readers = [asyncio.create_task(first_output(corral.feed, job)) for _ in range(WATCHERS)]
        most = before = 0
        while before < WATCHERS:
            await asyncio.sleep(0)
            done = sum(reader.done() for reader in readers)
            most, before = max(most, done - before), done
        assert most <= 2


async def test_whoever_does_read_gets_larger_pages_and_every_line(tmp_path: Path) -> None:
    async with printed(tmp_path) as (corral, job):
        sizes = []
        async for seen in corral.feed.watch(job, Cursor(), until_now=True):
            if seen[0].frame:
                sizes.append(len(seen))
        assert sum(sizes) == LINES
        assert len(sizes) < 30
        assert max(sizes) > 20 * sizes[0]


async def test_who_comes_later_does_not_go_through_the_small_pages_of_the_first(
    tmp_path: Path,
) -> None:
    async with shell(tmp_path, seconds=lambda _: 1e6) as corral:
        job = await corral.submit()
        await corral.until(job, AttemptStarted)
        corral.store.recent[job].spoke = True

        def say() -> None:
            corral.spool.append(job, 1, encode_frame(OutputFrame(1.0, "stdout", "moo")))
            corral.feed.heard(job)

        first, second = (corral.feed.watch(job, Cursor()) for _ in range(2))
        say()
        for watching in (first, second):
            assert len(await _output_of(watching)) == 1
        for _ in range(3):
            say()
            assert len(await _output_of(first)) == 1, "as soon as it is there"
        assert len(await _output_of(second)) == 3, "all of it at once"
        for watching in (first, second):
            await watching.aclose()


async def _output_of(watching: AsyncIterator[Sequence[Seen]]) -> Sequence[Seen]:
    while not (seen := await anext(watching))[0].frame:
        pass
    return seen
