"""How far a batch is: by worker, how often models were changed, how long it still takes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from corral.controller.history.listing import Listing
from corral.controller.jobs.batches import look, slots, switches
from corral.core.errors import BatchNotFound
from corral.core.job import Needs, Shape
from tests.controller.shell import shell, worker


def test_switches_are_changes_between_jobs_of_one_place() -> None:
    alone = [("w", model, float(n), n + 0.9) for n, model in enumerate("aabba")]
    assert switches(alone) == {"w": 2}
    assert switches([("w", "a", 0.0, 1.0)]) == {}
    assert switches([("v", "a", 0.0, 1.0), ("w", "b", 1.0, 2.0)]) == {}, "each worker for itself"


def test_what_runs_at_once_has_places_of_its_own() -> None:
    beside = [("w", model, start, start + 1) for start in (0.0, 1.0, 2.0) for model in ("a", "b")]
    assert switches(beside) == {"w": 0}
    third = [*beside, ("w", "c", 3.0, 4.0)]
    assert switches(third) == {"w": 1}


def test_slots_are_what_runs_at_once() -> None:
    shape = Shape(needs=Needs(gpu_tenths=5))
    two = worker("w", cpus=8, gpus=2)
    assert slots(shape, [two]) == 4
    assert slots(shape, [two, worker("v", cpus=8, gpus=1)]) == 6
    assert slots(Shape(needs=Needs(gpus=3)), [two]) == 0
    assert slots(Shape(needs=Needs()), [two]) == 8


async def test_a_batch_by_worker(tmp_path: Path) -> None:
    workers = [worker("one", cpus=1), worker("two", cpus=1)]
    async with shell(tmp_path, workers, lambda _: 0.01) as corral:
        listing = Listing(corral.store)
        try:
            with pytest.raises(BatchNotFound):
                await look("b", listing, corral.store.world, corral.loop)
            ids = [
                await corral.submit(
                    text=str(n), batch="b", labels={"model": "ab"[n % 2]}, needs=Needs(worker=name)
                )
                for name in ("one", "two")
                for n in range(4)
            ]
            for job in ids:
                await corral.until_ended(job)
            found = await look("b", listing, corral.store.world, corral.loop)
            shares = {name: (one.succeeded, one.failed) for name, one in found.shares.items()}
            assert shares == {"one": (4, 0), "two": (4, 0)}
            assert found.left_s == 0.0
            assert found.counted.states == {"succeeded": 8}
            assert found.model_switches == sum(one.model_switches for one in found.shares.values())
            assert found.shares["one"].model_switches == 3
            await corral.submit(text="x", batch="b", needs=Needs(gpus=9), wait=True)
            waits = await look("b", listing, corral.store.world, corral.loop)
            assert waits.left_s is None, "nobody knows how long what never ran takes"
        finally:
            await asyncio.to_thread(listing.close)
