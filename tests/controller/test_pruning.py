"""Pruning makes gaps that are known to be there; every other gap is damage, as ever."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.controller.journal import pruned
from corral.controller.journal.database import Journal
from corral.controller.recovery.repair import repair
from corral.controller.store import Store
from corral.controller.world import World
from corral.core.errors import JobNotFound, JournalDamaged
from corral.core.events import (
    AttemptPlaced,
    AttemptStarted,
    JobCancelled,
    JobSubmitted,
    JobSucceeded,
    Journaled,
    ResultOrphaned,
)
from corral.core.job import Needs
from tests.controller.shell import records_of

SOON_S = 10.0


def open_store(folder: Path) -> Store:
    folder.mkdir(exist_ok=True, parents=True)
    store = Store(Journal(folder), World())
    store.recover()
    return store


def story(job: str) -> list[Journaled]:
    return [
        JobSubmitted(job=job, at=1, needs=Needs(), digest="d", key=f"key-{job}", batch="herd"),
        AttemptPlaced(job=job, at=2, attempt=1, worker="w"),
        AttemptStarted(job=job, at=3, attempt=1),
        JobSucceeded(job=job, at=4, attempt=1, seconds=1.0),
    ]


async def fill(store: Store, count: int, dealt: Sequence[int] = ()) -> list[str]:
    """Ended jobs whose records lie between each other's, as `dealt` says, and one that lives."""
    await store.append([JobSubmitted(job="living", at=1, needs=Needs(), digest="d")])
    jobs = [f"job{n}" for n in range(count)]
    left = {job: story(job) for job in jobs}
    for turn in [*dealt, *(n for n in range(count) for _ in range(4))]:
        if facts := left[jobs[turn % count]]:
            fact = facts.pop(0)
            await store.enqueue([fact], {fact.job: b"document"})
    return jobs


def damage(folder: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(folder / "corral.db")) as connection:
        for statement in statements:
            assert connection.execute(statement).rowcount > 0, statement
        connection.commit()


def facts_of(store: Store, job: str) -> list[str]:
    return [record.kind for record in records_of(store, job)]


async def prune(store: Store, jobs: Sequence[str]) -> None:
    done = await store.prune(jobs, SOON_S)
    assert (done.jobs, done.damaged) == (len(jobs), [])


@settings(max_examples=25, deadline=None)
@given(
    dealt=st.lists(st.integers(0, 5), max_size=24),
    slices=st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=4),
    loss=st.integers(0, 1_000),
)
def test_any_jobs_in_any_order(dealt: list[int], slices: list[list[int]], loss: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_any_jobs(Path(folder) / "journal", dealt, slices, loss))


async def _any_jobs(folder: Path, dealt: list[int], slices: list[list[int]], loss: int) -> None:
    store = open_store(folder)
    jobs = await fill(store, 6, dealt)
    last = store.journal.last_seq()
    gone = set()
    for chosen in slices:
        await prune(store, [jobs[n] for n in chosen])
        gone |= {jobs[n] for n in chosen}
    await store.close()
    store = open_store(folder)
    assert store.journal.last_seq() == last, "a number is never used again"
    assert set(store.world.heads) == {"living"}
    for job in jobs:
        if job in gone:
            with pytest.raises(JobNotFound):
                store.head(job)
            assert store.journal.ended_by_keys([f"key-{job}"]) == {}
        else:
            assert len(facts_of(store, job)) == 4
    kept = [record.seq for record in store.journal.scan()]
    intervals = [row[:2] for row in store.journal.pruned()]
    assert intervals == list(pruned.runs(set(range(1, last + 1)) - set(kept)))
    [change] = await store.append([JobCancelled(job="living", at=9)])
    assert change.seq == last + 1
    await store.close()
    # Any record lost outside of them is damage still.
    lost = [*kept, last + 1][loss % (len(kept) + 1)]
    damage(folder, f"DELETE FROM journal WHERE seq = {lost}")
    refused(folder, lost)


def refused(folder: Path, first: int | None = None) -> JournalDamaged:
    with pytest.raises(JournalDamaged) as caught:
        open_store(folder)
    if first is not None:
        assert caught.value.details["first_lost"] == first
    return caught.value


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM pruned WHERE first = 2",
        "UPDATE pruned SET last = last + 1 WHERE first = 2",
        "UPDATE pruned SET first = 3 WHERE first = 2",
        "UPDATE pruned SET crc = crc + 1 WHERE first = 10",
        "INSERT INTO pruned SELECT first + 100, last + 100, crc FROM pruned LIMIT 1",
        "UPDATE pruned SET last = 'x' WHERE first = 2",
        "DROP TABLE pruned",
    ],
)
async def test_damaged_intervals(tmp_path: Path, statement: str) -> None:
    folder = tmp_path / "journal"
    store = open_store(folder)
    jobs = await fill(store, 4)
    await prune(store, [jobs[0], jobs[2]])
    assert [row[:2] for row in store.journal.pruned()] == [(2, 5), (10, 13)]
    await store.close()
    with contextlib.closing(sqlite3.connect(folder / "corral.db")) as connection:
        connection.execute(statement)
        connection.commit()
    refused(folder)
    report = repair(tmp_path, yes=True)
    assert report.changed
    store = open_store(folder)
    assert set(store.world.heads) == {"living"}
    assert [len(facts_of(store, job)) for job in (jobs[1], jobs[3])] == [4, 4]
    await store.close()


@pytest.mark.parametrize(("first", "last"), [(2, 5), (6, 9), (17, 17), (18, 20), (30, 40)])
async def test_an_interval_that_was_never_pruned(tmp_path: Path, first: int, last: int) -> None:
    """Even under a right checksum: its records are there, or those before it are not."""
    store = open_store(tmp_path)
    await fill(store, 4)
    await store.close()
    row = pruned.interval(first, last)
    damage(tmp_path, f"INSERT INTO pruned VALUES {tuple(row)}")
    if (first, last) == (18, 20):
        open_store(tmp_path).journal.close()  # behind the last record, it only skips numbers
    else:
        refused(tmp_path)


async def test_repair_knows_what_was_pruned(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    store = open_store(folder)
    jobs = await fill(store, 5)
    await prune(store, jobs[:3])
    await store.close()
    damage(folder, "DELETE FROM journal WHERE seq = 16")
    refused(folder, 16)
    report = repair(tmp_path, yes=True)
    assert "8 records are intact, 1 are lost (the first is 16)" in " ".join(report.lines)
    store = open_store(folder)
    assert store.journal.last_seq() > 21
    assert len(facts_of(store, jobs[4])) == 4
    await store.close()


async def test_a_damaged_job_stays_for_the_next_start_to_see(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    jobs = await fill(store, 3)
    damage(tmp_path, "UPDATE journal SET body = 'moo' WHERE seq = 8")
    done = await store.prune(jobs, SOON_S)
    assert (done.jobs, done.records, done.damaged) == (3, 8, [jobs[1]])
    await store.close()
    refused(tmp_path, 8)


async def test_damaged_intervals_are_not_joined(tmp_path: Path) -> None:
    """A new checksum over a damaged interval would hide what was lost."""
    store = open_store(tmp_path)
    jobs = await fill(store, 3)
    await prune(store, jobs[:1])
    damage(tmp_path, "UPDATE pruned SET crc = crc + 1")
    with pytest.raises(JournalDamaged):
        await store.prune(jobs[1:2], SOON_S)
    assert len(facts_of(store, jobs[1])) == 4, "nothing of it is done"
    await store.append([JobSubmitted(job="after", at=5, needs=Needs(), digest="d")])
    await store.close()
    refused(tmp_path)


async def test_a_late_note_and_pruning_meet(tmp_path: Path) -> None:
    """The note comes first, and goes with its job; or it comes later, and finds no job."""
    store = open_store(tmp_path)
    jobs = await fill(store, 2)
    note = [ResultOrphaned(job=jobs[0], at=9, attempt=1, outcome="failed")]
    noted, done = await asyncio.gather(
        store.append(note, skip_conflicts=True), store.prune([jobs[0]], SOON_S)
    )
    late = [ResultOrphaned(job=jobs[0], at=9, attempt=1, outcome="failed")]
    with pytest.raises(JobNotFound):
        await store.append(late)
    assert not await store.append(late, skip_conflicts=True)
    assert (len(noted), done.records) in ((1, 5), (0, 4))
    await store.close()
    open_store(tmp_path).journal.close()


async def test_a_slice_keeps_its_time(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    jobs = await fill(store, 4)
    assert (await store.prune(jobs, 0.0)).jobs == 1
    assert (await store.prune(jobs[1:], SOON_S)).jobs == 3
    assert [row[:2] for row in store.journal.pruned()] == [(2, 17)]
    await store.close()


async def test_reading_what_was_just_pruned(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    jobs = await fill(store, 2)
    head = store.head(jobs[0])
    await prune(store, jobs[:1])
    with pytest.raises(JobNotFound, match="removed from the history"):
        list(store.journal.backwards(head.last_seq))
    await store.close()


async def test_pages_are_used_again(tmp_path: Path) -> None:
    """The file stops growing once as much is pruned as comes in."""
    store = open_store(tmp_path)
    sizes = []
    for turn in range(6):
        jobs = [f"{turn}-{n}" for n in range(40)]
        documents = dict.fromkeys(jobs, b"x" * 4096)
        await store.enqueue([story(job)[0] for job in jobs], documents)
        for job in jobs:
            await store.append(story(job)[1:])
        await prune(store, jobs)
        with contextlib.closing(sqlite3.connect(tmp_path / "corral.db")) as connection:
            sizes.append(connection.execute("PRAGMA page_count").fetchone()[0])
    await store.close()
    assert sizes[-1] <= sizes[0] + 8, sizes
