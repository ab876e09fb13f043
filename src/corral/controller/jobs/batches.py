"""How far a batch is: what each worker did of it, how often models were changed, and what is left.

Computed when somebody asks, from the history and the living.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from corral.controller.history.listing import Counted, Listing
from corral.controller.loop import Loop
from corral.controller.world import World
from corral.core.job import Shape, State
from corral.core.worker import Capacity, Worker
from corral.scheduler.fit import refuse_ever

MOST_SLOTS = 256
"""No more at once are counted on one worker."""


class Share(Struct):
    succeeded: int = 0
    failed: int = 0
    running: int = 0
    seconds: float = 0.0
    model_switches: int = 0


class BatchProgress(Struct):
    name: str
    counted: Counted
    shares: dict[str, Share]
    """By what people call the worker."""
    left_s: float | None

    @property
    def model_switches(self) -> int:
        return sum(share.model_switches for share in self.shares.values())


async def look(name: str, listing: Listing, world: World, loop: Loop) -> BatchProgress:
    """BatchNotFound where nothing belongs to it."""
    counted = await listing.batch(name)
    shares: dict[str, Share] = {}

    def share(worker: str) -> Share:
        return shares.setdefault(world.names.get(worker, worker), Share())

    for worker, state, count, seconds in await listing.by_worker(name):
        share(worker).seconds += seconds
        if state == State.SUCCEEDED:
            share(worker).succeeded += count
        elif state == State.FAILED:
            share(worker).failed += count
    for worker, changed in await listing.turns(name, switches):
        share(worker).model_switches += changed
    living: dict[Shape, int] = {}
    async for heads in listing.living(name):
        for head in heads:
            living[head.shape] = living.get(head.shape, 0) + 1
            if head.course.started_at and head.state.held:
                share(head.worker).running += 1
    left_s = estimate(living, world, loop.workers()) if living else 0.0
    return BatchProgress(name, counted, dict(sorted(shares.items())), left_s)


def estimate(counts: Mapping[Shape, int], world: World, workers: Sequence[Worker]) -> float | None:
    """About how long so many jobs of each shape take on these workers, if nothing else ran; None
    where one of the shapes was never met, or nobody is there to run it."""
    total = 0.0
    for shape, count in counts.items():
        typical, together = world.typical_s.get(shape), slots(shape, workers)
        if typical is None or not together:
            return None
        total += typical * count / min(together, count)
    return total


def slots(shape: Shape, workers: Iterable[Worker]) -> int:
    """How many jobs of a shape run at once where nothing else does."""
    found = 0
    for worker in workers:
        if not worker.takes_work or refuse_ever(shape, worker) is not None:
            continue
        room = Capacity(worker.capabilities, worker.taken)
        for _ in range(MOST_SLOTS):
            holding = room.fits(shape.needs, above_vram_gb=shape.above_vram_gb)
            if holding is None:
                break
            room.take(holding)
            found += 1
    return found


def switches(turns: Iterable[tuple[str, str, float, float]]) -> dict[str, int]:
    """Changes of model by worker. Turns are (worker, model, from, to), in the order they began.

    What ran at once ran in places of its own, each with its own model. A job goes where its model
    is, if such a place was free; only where another's had to make room is it a switch."""
    places: dict[str, list[tuple[str, float]]] = {}
    found: dict[str, int] = {}
    for worker, model, began, ended in turns:
        had = places.setdefault(worker, [])
        free = [place for place in had if place[1] <= began + SLACK_S]
        same = [place for place in free if place[0] == model]
        if same or free:
            had.remove(same[0] if same else free[0])
            found[worker] = found.get(worker, 0) + (not same)
        had.append((model, ended))
    return found


SLACK_S = 0.05
"""By so much two jobs may overlap that ran one after the other: their times are rounded, and an
end is told a little after it was."""
