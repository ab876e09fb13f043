"""Who writes a commit, and what holds while it is on its way to the disk."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from corral.controller import store as store_module
from corral.controller.journal.database import Journal
from corral.controller.journal.record import Change
from corral.controller.output.feed import Feed
from corral.controller.output.pages import Cursor
from corral.controller.store import QUICK_S, SMALL_COMMIT, Store
from corral.controller.world import World
from corral.core.errors import StorageFailed, Unavailable
from corral.core.events import AttemptOutput, AttemptStarted, JobSubmitted, JobSucceeded
from corral.core.frames import OutputFrame
from corral.core.job import Failure, Head, Needs, State
from corral.engines.engine import Attempt
from tests.controller.shell import Shell, function_job, shell, worker
from tests.eventually import eventually_async

FOREVER = 1e6


class WatchedJournal(Journal):
    """The real journal on a disk that can be made slow; it remembers who wrote."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(folder)
        self.writers: list[str] = []
        self.slow_s = 0.0
        self.writing = threading.Event()

    def write(self, *group: Any) -> None:
        self.writing.set()
        self.writers.append(threading.current_thread().name)
        time.sleep(self.slow_s)
        super().write(*group)


@pytest.fixture
def journal(tmp_path: Path) -> WatchedJournal:
    return WatchedJournal(tmp_path / "journal")


def facts(*jobs: str) -> list[JobSubmitted]:
    return [JobSubmitted(job=job, at=1.0, needs=Needs(), digest="d") for job in jobs]


def opened(journal: Journal) -> Store:
    store = Store(journal, World())
    store.recover()
    return store


async def test_many_facts_are_written_by_the_thread(journal: WatchedJournal) -> None:
    store, here = opened(journal), threading.current_thread().name
    await store.append(facts(*(f"j{n}" for n in range(SMALL_COMMIT + 1))))
    assert journal.writers == ["journal"]
    await store.close()
    journal = WatchedJournal(journal.folder)
    store = opened(journal)
    await store.append(facts("one"))
    assert journal.writers == [here]
    await store.close()


async def test_who_cannot_be_told_costs_nobody_else_anything(journal: WatchedJournal) -> None:
    store = opened(journal)
    heard: list[str] = []
    missed: list[str] = []

    def breaks(changes: object) -> None:
        raise KeyError("a mistake of ours")

    def breaks_too(seconds: float, facts: int) -> None:
        raise OSError("no descriptor for it")

    store.listen(breaks, missed=lambda changes: missed.extend(one.head.id for one in changes))
    store.listen(breaks, missed=breaks)
    store.listen(lambda changes: heard.extend(one.head.id for one in changes))
    store.committed = breaks_too
    async with asyncio.timeout(60):
        for job in ("one", "two"):
            (change,) = await store.append(facts(job))
            assert change.head.id == job
    assert heard == missed == ["one", "two"]
    assert not store.failed.is_set(), "nothing is wrong with the disk"
    await store.close()


async def test_what_the_world_cannot_take_in_ends_the_controller_and_hangs_nobody(
    journal: WatchedJournal,
) -> None:
    class Confused(World):
        def apply(self, head: Head) -> None:
            raise KeyError("a mistake of ours")

    store, heard = Store(journal, Confused()), list[str]()
    store.recover()
    store.listen(lambda changes: heard.append("told"))
    async with asyncio.timeout(60):
        (change,) = await store.append(facts("kept"))
        assert change.head.id == "kept", "it is on disk, so it is acknowledged"
        assert store.failed.is_set()
        with pytest.raises(StorageFailed, match="a mistake of its own"):
            await store.append(facts("later"))
    assert not heard, "of what is not so in memory nobody hears"
    await store.close()
    again = opened(WatchedJournal(journal.folder))
    assert set(again.world.heads) == {"kept"}
    await again.close()


@pytest.mark.parametrize(("count", "attempt"), [(1, 1), (9, 2)], ids=["early", "after its commit"])
async def test_a_job_that_cannot_be_sent_costs_its_own_attempt(
    tmp_path: Path, count: int, attempt: int
) -> None:
    """Neither does it wait for ever, nor does anybody else. What is sent early and is not goes the
    usual way."""
    async with shell(tmp_path, [worker(cpus=16.0)]) as corral:
        start, refused = corral.engine.start, list[str]()

        def fickle(attempt: Attempt) -> None:
            if not refused:
                refused.append(attempt.job)
                raise RuntimeError("the handler is closed")
            start(attempt)

        corral.engine.start = fickle  # type: ignore[method-assign]
        asked = await corral.queue.submit([function_job(str(n)) for n in range(count)])
        async with asyncio.timeout(20):
            for one in asked:
                assert (await corral.until_ended(one.job)).state is State.SUCCEEDED
        assert corral.store.head(refused[0]).attempt == attempt
        assert not corral.store.failed.is_set()
        assert not corral.loop.early


async def test_a_feed_that_did_not_hear_lets_everybody_look_again(tmp_path: Path) -> None:
    class Deaf(Feed):
        def _committed(self, changes: Sequence[Change]) -> None:
            raise MemoryError("a mistake of ours")

    async with shell(tmp_path, seconds=lambda _: FOREVER) as corral:
        deaf = Deaf(corral.store, corral.spool)
        job = await corral.submit(batch="b")
        await corral.until(job, AttemptStarted)

        async def end_of_batch() -> str:
            async for seen in deaf.watch_batch("b", Cursor()):
                return seen[0].job
            return ""

        watching = [asyncio.create_task(one) for one in (corral.until_ended(job), end_of_batch())]
        await asyncio.sleep(0)
        corral.engine.fail(job, 1, Failure(code="bad_package", message="end"))
        async with asyncio.timeout(20):
            async for _ in deaf.watch_end(job):
                pass
            assert (await asyncio.gather(*watching))[1] == job


async def test_a_slow_disk_is_waited_for_by_the_thread(journal: WatchedJournal) -> None:
    store, here = opened(journal), threading.current_thread().name
    journal.slow_s = 5 * QUICK_S
    await store.append(facts("first"))
    for number in range(3):
        await store.append(facts(f"j{number}"))
    assert journal.writers == [here, "journal", "journal", "journal"]
    await store.close()


async def test_closing_waits_for_everything_that_was_asked_for(journal: WatchedJournal) -> None:
    store = opened(journal)
    journal.slow_s = 0.05
    asked = [store.enqueue(facts(f"j{n}"), {}) for n in range(10)]
    await asyncio.sleep(0)
    asked += [store.enqueue(facts(*(f"k{m}-{n}" for n in range(50))), {}) for m in range(3)]
    await store.close()
    assert all(one.done() and not one.exception() for one in asked)
    again = opened(WatchedJournal(journal.folder))
    assert len(again.world.heads) == 160
    assert again.journal.mark.seq == 160
    await again.close()


async def until_writing(journal: WatchedJournal) -> None:
    assert await asyncio.to_thread(journal.writing.wait, 10)


async def slow(corral: Shell, journal: WatchedJournal) -> None:
    """From here on every commit takes a while, in the thread."""
    journal.slow_s = 5 * QUICK_S
    await corral.submit()
    journal.slow_s = 0.05
    journal.writing.clear()


@pytest.mark.parametrize("count", [1, 20])
async def test_a_caller_who_leaves_during_the_commit_leaves_whole_jobs(
    tmp_path: Path, journal: WatchedJournal, count: int
) -> None:
    async with shell(tmp_path, seconds=lambda _: FOREVER, journal=journal) as corral:
        await slow(corral, journal)
        jobs = [function_job(str(n), key=f"k{n}", batch="b") for n in range(count)]
        first = asyncio.create_task(corral.queue.submit(jobs))
        await until_writing(journal)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        # The key belongs to the job that is still on its way, and to no other.
        again = await corral.queue.submit(jobs)
        living = {head.id for head in corral.store.world.heads.values() if head.batch == "b"}
        assert {one.job for one in again} == living
        assert len(living) == count
        for one in again:
            await corral.queue.cancel(one.job)
            await corral.until_ended(one.job)
        # What ended keeps its key, and nobody waits for it any more.
        assert {one.job for one in await corral.queue.submit(jobs)} == living


async def test_room_is_taken_while_a_placement_is_on_its_way_to_the_disk(
    tmp_path: Path, journal: WatchedJournal
) -> None:
    small = worker(cpus=2, gpus=0, ahead=0)
    async with shell(tmp_path, [small], lambda _: FOREVER, journal=journal) as corral:
        await slow(corral, journal)  # which takes one of two places
        first = asyncio.create_task(corral.submit())
        await until_writing(journal)
        others = [asyncio.create_task(corral.submit()) for _ in range(3)]
        jobs = await asyncio.gather(first, *others)
        await corral.until(jobs[0], AttemptStarted)
        held = corral.store.world.held["w1"]
        assert jobs[0] in held
        assert len(held) == 2
        assert {corral.store.head(job).state for job in jobs[1:]} == {State.QUEUED}
        # What was reserved for it is free again when it ends.
        corral.engine.fail(jobs[0], 1, Failure(code="bad_package", message="end"))
        await corral.until(jobs[1], AttemptStarted)


class FullJournal(WatchedJournal):
    """The real journal on a disk that can be made full."""

    full = False

    def write(self, *group: Any) -> None:
        if self.full:
            raise StorageFailed("The disk is on holiday.")
        super().write(*group)


async def test_a_placement_that_is_not_written_frees_its_room(tmp_path: Path) -> None:
    journal = FullJournal(tmp_path / "journal")
    small = worker(cpus=1, gpus=0, ahead=0)
    async with shell(tmp_path, [small], lambda _: FOREVER, journal=journal) as corral:
        await corral.until_ended((await corral.queue.cancel(await corral.submit())).id)
        journal.full = True
        for needs in (Needs(cpus=64), Needs(), Needs()):  # the first one cannot be sent early
            with pytest.raises(StorageFailed, match="holiday"):
                await corral.submit(key="k", needs=needs)
        assert not await corral.engine.running(), "what is refused never ran"
        journal.full = False
        job = await corral.submit(key="k")
        await corral.until(job, AttemptStarted)


@pytest.mark.parametrize("early_starts", [True, False])
async def test_what_is_sent_before_it_is_written(tmp_path: Path, early_starts: bool) -> None:
    """With early starts alone: the plain way writes, places and writes, and then sends."""
    async with shell(tmp_path, early_starts=early_starts) as corral:
        start, known = corral.engine.start, list[bool]()

        def noted(attempt: Attempt) -> None:
            known.append(attempt.job in corral.store.world.heads)
            start(attempt)

        corral.engine.start = noted  # type: ignore[method-assign]
        job = await corral.submit()
        assert (await corral.until_ended(job)).state is State.SUCCEEDED
        assert known == [not early_starts]


async def test_what_was_sent_early_is_not_refused_but_written_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ran: a refusal would be a lie, and so would a second run."""
    monkeypatch.setattr(store_module, "ROOM_S", 0.01)
    journal = FullJournal(tmp_path / "journal")
    async with shell(tmp_path, journal=journal) as corral:
        await corral.until_ended(await corral.submit())
        journal.full = True
        sent = asyncio.create_task(corral.submit(key="k"))
        # A commit that fails is told to nobody.
        await eventually_async(lambda: not corral.store.has_room, "the disk is full")
        same = asyncio.create_task(corral.submit(key="k"))
        for _ in range(3):
            with pytest.raises(StorageFailed, match="holiday"):
                await corral.submit(key="another")  # not sent, so it is refused at once
        await asyncio.sleep(0.05)  # meanwhile it ends, and that waits too
        assert not sent.done()
        journal.full = False
        async with asyncio.timeout(20):
            job = await sent
            assert await same == job
            head = await corral.until_ended(job)
        assert (head.state, head.attempt) == (State.SUCCEEDED, 1)
        assert corral.store.world.keys == {}
        assert corral.store.journal.ended_by_keys(["another"]) == {}
        await corral.until_ended(await corral.submit(key="another"))


async def test_closing_does_not_wait_for_room(tmp_path: Path) -> None:
    journal = FullJournal(tmp_path / "journal")
    async with shell(tmp_path, seconds=lambda _: FOREVER, journal=journal) as corral:
        await corral.submit()
        journal.full = True
        sent = asyncio.create_task(corral.submit())
        # A commit that fails is told to nobody.
        await eventually_async(lambda: not corral.store.has_room, "the disk is full")
    with pytest.raises(Unavailable, match="may have begun"):
        await sent


async def test_a_short_watch_tells_all_of_a_job_that_ends(tmp_path: Path) -> None:
    async with shell(tmp_path, seconds=lambda _: 0.01) as corral:
        job = await corral.submit()
        seen = await corral.feed.watch_briefly(job, 30.0)
        assert [type(one.fact).__name__ for one in seen] == corral.facts(job)
        assert isinstance(seen[-1].fact, JobSucceeded)


async def test_a_short_watch_tells_what_a_job_printed_and_where_to_go_on(tmp_path: Path) -> None:
    async with shell(tmp_path, seconds=lambda _: FOREVER) as corral:
        job = await corral.submit()
        await corral.until(job, AttemptStarted)
        watching = asyncio.create_task(corral.feed.watch_briefly(job, 30.0))
        await corral.intake.take(
            [AttemptOutput(job, 1, "w1", OutputFrame(1.0, "stdout", "hello\n"))]
        )
        corral.engine.fail(job, 1, Failure(code="bad_package", message="end"))
        seen = await watching
        whole = [one async for batch in corral.feed.watch(job, Cursor()) for one in batch]
        assert seen == whole
        assert sum(b"hello" in one.frame for one in seen) == 1


@pytest.mark.parametrize("prints", [True, False])
async def test_a_short_watch_of_a_long_job_ends_and_goes_on_later(
    tmp_path: Path, prints: bool
) -> None:
    async with shell(tmp_path, seconds=lambda _: FOREVER) as corral:
        job = await corral.submit()
        await corral.until(job, AttemptStarted)
        said = OutputFrame(1.0, "stdout", "hello\n")
        if prints:
            await corral.intake.take([AttemptOutput(job, 1, "w1", said)])
        seen = await corral.feed.watch_briefly(job, 0.02)
        assert isinstance([one.fact for one in seen if one.fact][-1], AttemptStarted)
        assert sum(b"hello" in one.frame for one in seen) == prints
        await corral.intake.take([AttemptOutput(job, 1, "w1", said)])
        corral.engine.fail(job, 1, Failure(code="bad_package", message="end"))
        rest = [one async for batch in corral.feed.watch(job, seen[-1].cursor) for one in batch]
        whole = [one async for batch in corral.feed.watch(job, Cursor()) for one in batch]
        assert seen + rest == whole


async def test_on_a_slow_disk_a_held_job_and_what_it_says_share_a_commit(
    tmp_path: Path, journal: WatchedJournal
) -> None:
    journal.slow_s = 0.003
    async with shell(tmp_path, journal=journal) as made:
        await made.until_ended(await made.submit())  # it learns how slow the disk is
        groups: list[int] = []
        made.store.committed = lambda seconds, facts: groups.append(facts)
        (accepted,) = await made.queue.submit([function_job("held")], held=True)
        assert made.facts(accepted.job)[:3] == ["JobSubmitted", "AttemptPlaced", "AttemptStarted"]
        assert groups[0] >= 3
        assert (await made.until_ended(accepted.job)).state is State.SUCCEEDED


async def test_a_held_job_that_takes_its_time_is_written_meanwhile(
    tmp_path: Path, journal: WatchedJournal
) -> None:
    journal.slow_s = 0.003
    async with shell(tmp_path, seconds=lambda _: FOREVER, journal=journal) as made:
        await made.submit()
        (accepted,) = await made.queue.submit([function_job("held")], held=True)
        head = made.store.head(accepted.job)
        assert made.journal.record(head.submitted_seq).job == accepted.job
        assert not head.state.ended
