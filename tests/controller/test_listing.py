"""Lists: the same answer as looking at every job, however it lives; and where lists come from."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from corral.controller.history.listing import JobFilters, Listing
from corral.core.errors import BatchNotFound, InvalidRequest
from corral.core.job import ENDED, JobId, State
from tests.controller.shell import Needs, QueueClass, Shell, shell, worker


async def herd(corral: Shell) -> list[JobId]:
    """Jobs of every kind: waiting for a GPU that nobody has, and ended in three ways."""
    ids = []
    kinds = itertools.product(["ended", "waiting", "cancelled"], ["", "ann"], ["", "b1", "b2"])
    for n, (kind, user, batch) in enumerate(kinds):
        needs = Needs() if kind == "ended" else Needs(gpus=9)
        job = await corral.submit(
            text=str(n),
            name=f"Job {n}",
            user=user,
            batch=batch,
            needs=needs,
            labels={"n": str(n % 2), f"only{n}": "x"},
            queue_class=QueueClass.INTERACTIVE if n % 3 else QueueClass.BATCH,
            wait=True,
        )
        ids.append(job)
        if kind == "ended":
            await corral.until_ended(job)
        elif kind == "cancelled":
            await corral.queue.cancel(job)
    return ids


def expected(corral: Shell, ids: list[JobId], filters: JobFilters) -> list[JobId]:
    found = []
    for job in ids:
        head = corral.store.head(job)
        labels = dict(head.given.labels)
        wanted = [label.partition("=") for label in filters.labels]
        if (
            (not filters.states or head.state in filters.states)
            and (not filters.active or head.state not in ENDED)
            and (not filters.batch or head.batch == filters.batch)
            and (not filters.user or head.given.user == filters.user)
            and (not filters.queue_class or head.shape.queue_class == filters.queue_class)
            and (not filters.worker or head.worker == filters.worker)
            and (not filters.since or head.submitted_at >= filters.since)
            and (not filters.until or head.submitted_at < filters.until)
            and all(k in labels and (not sign or labels[k] == v) for k, sign, v in wanted)
            and filters.text.lower() in f"{head.name.lower()} {head.id}"
        ):
            found.append(job)
    return sorted(found, reverse=True)


async def test_every_filter_chooses_what_it_says(tmp_path: Path) -> None:
    async with shell(tmp_path, [worker("w1")]) as corral:
        ids = await herd(corral)
        listing = Listing(corral.store)
        middle = corral.store.head(ids[len(ids) // 2]).submitted_at
        choices = [
            JobFilters(),
            JobFilters(active=True),
            JobFilters(worker="w1"),
            JobFilters(worker="w2"),
            JobFilters(labels=("n=1",)),
            JobFilters(labels=("n", "only3")),
            JobFilters(labels=("n=1", "only4")),
            JobFilters(since=middle),
            JobFilters(until=middle),
            JobFilters(text="jOB 1"),
            JobFilters(text=ids[3][-4:]),
            *(JobFilters(states=frozenset({one})) for one in State),
            *(JobFilters(states=frozenset(two)) for two in itertools.combinations(State, 2)),
            *(JobFilters(user=u, batch=b) for u in ("", "ann", "bob") for b in ("", "b1", "b9")),
            JobFilters(queue_class="interactive", states=frozenset({State.CANCELLED})),
        ]
        for filters in choices:
            found = await listing.page(filters, limit=100)
            assert found == expected(corral, ids, filters), filters
        assert await listing.page(JobFilters(), limit=4) == sorted(ids)[:-5:-1]
        pages, before = list[JobId](), ""
        while page := await listing.page(JobFilters(), before=before, limit=4):
            pages, before = pages + page, page[-1]
        assert pages == sorted(ids, reverse=True)
        listing.close()


def test_words_that_are_no_filter() -> None:
    with pytest.raises(InvalidRequest, match="no state"):
        JobFilters.checked(states=["bored"])
    with pytest.raises(InvalidRequest, match="interactive or batch"):
        JobFilters.checked(queue_class="first")


async def test_what_ends_while_it_is_counted_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shell(tmp_path, []) as corral:
        jobs = [await corral.submit(text=str(n), batch="b", wait=True) for n in range(4)]
        await corral.queue.cancel(jobs[0])
        listing = Listing(corral.store)
        rows = listing._rows
        ending = iter(jobs[1:])

        async def meanwhile(*ask: Any) -> Any:
            """One ends before the history is read, and one right after."""
            await corral.queue.cancel(next(ending))
            found = await rows(*ask)
            if last := next(ending, ""):
                await corral.queue.cancel(last)
            return found

        monkeypatch.setattr(listing, "_rows", meanwhile)
        try:
            assert (await listing.batch("b")).states == {"cancelled": 1, "queued": 3}
            assert dict(await listing.batches())["b"].states == {"cancelled": 3, "queued": 1}
        finally:
            listing.close()


async def test_batches_are_counted(tmp_path: Path) -> None:
    async with shell(tmp_path) as corral:
        await herd(corral)
        listing = Listing(corral.store)
        counted = await listing.batch("b1")
        assert counted.states == {"succeeded": 2, "queued": 2, "cancelled": 2}
        assert (counted.total, counted.done) == (6, 4)
        assert [name for name, _ in await listing.batches()] == ["b2", "b1"]
        with pytest.raises(BatchNotFound):
            await listing.batch("b3")
        listing.close()
