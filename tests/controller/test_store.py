"""The one door to write: all or nothing, in groups, and the same after a restart."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.controller.journal.database import Journal
from corral.controller.journal.record import Change
from corral.controller.store import Store
from corral.controller.world import World
from corral.core.errors import Conflict, JobNotFound, JournalDamaged
from corral.core.events import (
    AttemptPlaced,
    AttemptStarted,
    CheckpointStored,
    JobCancelled,
    JobFailed,
    JobRequeued,
    JobStopping,
    JobSubmitted,
    JobSucceeded,
    Journaled,
    ResultOrphaned,
)
from corral.core.job import Failure, Needs, document_digest


def open_store(folder: Path) -> Store:
    folder.mkdir(exist_ok=True)
    store = Store(Journal(folder), World())
    store.recover()
    return store


def submitted(job: str, at: float = 1.0, **more: object) -> JobSubmitted:
    return JobSubmitted(job=job, at=at, needs=Needs(), digest="d", **more)  # type: ignore[arg-type]


async def test_facts_are_readable_after_a_restart(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    await store.enqueue([submitted("a", batch="b", key="k")], {"a": b"document"})
    await store.append([AttemptPlaced(job="a", at=2, attempt=1, worker="w")])
    await store.close()
    store = open_store(tmp_path)
    head = store.head("a")
    assert (head.attempt, head.worker, head.batch) == (1, "w", "b")
    assert store.document(head) == (b"document", document_digest(b"document"))
    assert store.world.keys == {"k": "a"}
    await store.close()


async def test_a_request_is_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    bad: list[Journaled] = [submitted("a"), JobSucceeded(job="a", at=2, attempt=1, seconds=1)]
    others = [store.append([submitted("x")]), store.append(bad), store.append([submitted("y")])]
    first, refused, last = await asyncio.gather(*others, return_exceptions=True)
    assert isinstance(refused, Conflict)
    assert not isinstance(first, BaseException)
    assert not isinstance(last, BaseException)
    assert set(store.world.heads) == {"x", "y"}
    with pytest.raises(JobNotFound):
        store.head("a")
    await store.close()
    store = open_store(tmp_path)
    assert set(store.world.heads) == {"x", "y"}
    await store.close()


async def test_conflicts_can_be_left_out(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    await store.append([submitted("a"), submitted("b")])
    await store.append([JobCancelled(job="a", at=2)])
    placed = [AttemptPlaced(job=job, at=3, attempt=1, worker="w") for job in ("a", "b", "none")]
    changes = await store.append(placed, skip_conflicts=True)
    assert [change.head.id for change in changes] == ["b"]
    await store.close()


async def test_requests_that_arrive_together_share_a_commit(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    groups: list[int] = []
    store.listen(lambda changes: groups.append(len(changes)))
    await asyncio.gather(*(store.append([submitted(f"j{n}")]) for n in range(500)))
    assert sum(groups) == 500
    assert len(groups) < 20
    await store.close()


async def test_listeners_see_only_what_is_on_disk(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    seen: list[Change] = []

    def listener(changes: object) -> None:
        assert isinstance(changes, list)
        seen.extend(changes)
        assert store.journal.last_seq() == changes[-1].seq

    store.listen(listener)
    await store.append([submitted("a")])
    await store.append([AttemptPlaced(job="a", at=2, attempt=1, worker="w")])
    assert [change.seq for change in seen] == [1, 2]
    await store.close()


async def test_a_changed_record_is_named(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    await store.append([submitted(f"j{n}") for n in range(10)])
    await store.close()
    import sqlite3

    connection = sqlite3.connect(tmp_path / "corral.db")
    connection.execute("UPDATE journal SET body = replace(body, 'd', 'e') WHERE seq = 4")
    connection.commit()
    connection.close()
    with pytest.raises(JournalDamaged, match="record 4 is the first one lost"):
        open_store(tmp_path)


FACTS = st.sampled_from(
    [
        lambda job, n: submitted(job, at=float(n)),
        lambda job, n: AttemptPlaced(job=job, at=n, attempt=n, worker=f"w{n % 3}"),
        lambda job, n: AttemptStarted(job=job, at=n, attempt=n, devices=("g",)),
        lambda job, n: JobRequeued(job=job, at=n, attempt=n, code="x", message="m", fault="job"),
        lambda job, n: JobRequeued(
            job=job, at=n, attempt=n, code="x", message="m", not_before=float(n), avoid="w1"
        ),
        lambda job, n: JobStopping(job=job, at=n, attempt=n),
        lambda job, n: JobSucceeded(job=job, at=n, attempt=n, seconds=1.0),
        lambda job, n: JobFailed(job=job, at=n, attempt=n, failure=Failure("c", "m")),
        lambda job, n: JobCancelled(job=job, at=n, attempt=n),
        lambda job, n: CheckpointStored(job=job, at=n, attempt=n, size=1, sha256=f"{n}"),
        lambda job, n: ResultOrphaned(job=job, at=n, attempt=n, outcome="failed"),
    ]
)


@given(st.lists(st.tuples(st.sampled_from("abc"), FACTS), max_size=60))
@settings(max_examples=60, deadline=None)
def test_whatever_happens_a_restart_replays_to_the_same_world(
    steps: list[tuple[str, object]],
) -> None:
    async def scenario(folder: Path) -> None:
        store = open_store(folder)
        born: set[str] = set()
        for number, (job, make) in enumerate(steps, start=1):
            fact = make(job, number)  # type: ignore[operator]
            if isinstance(fact, JobSubmitted):
                if job in born:
                    continue
                born.add(job)
            await store.append([fact], skip_conflicts=True)
        before = (store.world.heads, store.world.held, store.world.waiting)
        ends = {job: store.head(job) for job in born}
        await store.close()
        store = open_store(folder)
        assert (store.world.heads, store.world.held, store.world.waiting) == before
        assert {job: store.head(job) for job in born} == ends
        kinds: dict[str, int] = {}
        for record in store.journal.scan():
            if record.kind in ("JobSucceeded", "JobFailed", "JobCancelled"):
                kinds[record.job] = kinds.get(record.job, 0) + 1
        assert all(count == 1 for count in kinds.values())
        await store.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(scenario(Path(folder)))


async def test_many_digests_are_read_with_one_query(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for job in ("a", "b", "c"):
        await store.enqueue([submitted(job)], {job: job.encode()})
    await store.close()
    store = open_store(tmp_path)
    store.know_digests([store.head("a"), store.head("c")])
    assert store.world.digests == {job: document_digest(job.encode()) for job in ("a", "c")}
    await store.close()
