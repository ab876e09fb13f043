"""One description, several seeds, three ways to schedule: the figures side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from msgspec import Struct

from corral.simulate.baselines import Fifo, RoundRobin
from corral.simulate.bound import lower_bound
from corral.simulate.cluster import Sender, Simulation
from corral.simulate.description import Description
from corral.simulate.scheduled import Scheduled
from corral.simulate.trace import draw

WAYS: dict[str, Callable[[Description], Sender]] = {
    "corral": lambda described: Scheduled(described.aging_s),
    "fifo": lambda _: Fifo(),
    "round robin": lambda _: RoundRobin(),
}


class Waits(Struct, frozen=True):
    jobs: int
    p50_s: float
    p95_s: float
    max_s: float


class Usage(Struct, frozen=True):
    """Shares of the makespan."""

    working: float
    loading: float


class SimulatedRun(Struct, frozen=True):
    """One way to schedule, on the trace of one seed."""

    way: str
    seed: int
    bound_s: float
    makespan_s: float
    ratio: float
    """The makespan, in lower bounds."""
    loads: int
    utilisation: float
    """The share of all the speed there is that went into work."""
    waits: dict[str, Waits]
    workers: dict[str, Usage]
    succeeded: int
    failed: int


class WaitsSummed(Struct, frozen=True):
    """Means over the seeds, and the worst of them."""

    jobs: int
    p50_s: float
    p95_s: float
    p95_worst_s: float
    max_s: float


class Summed(Struct, frozen=True):
    """One way to schedule over all seeds: means, and the worst where it says so."""

    makespan_s: float
    bound_s: float
    ratio: float
    ratio_best: float
    ratio_worst: float
    loads: float
    utilisation: float
    waits: dict[str, WaitsSummed]
    workers: dict[str, Usage]
    failed_most: int


def compare(described: Description, seeds: Sequence[int]) -> list[SimulatedRun]:
    found: list[SimulatedRun] = []
    for seed in seeds:
        trace = draw(described, seed)
        bound = lower_bound(described, trace)
        for way, sender in WAYS.items():
            simulation = Simulation(described, trace, sender(described))
            simulation.run()
            found.append(_run(way, seed, bound, simulation))
    return found


def _run(way: str, seed: int, bound: float, done: Simulation) -> SimulatedRun:
    span, machines = done.ended_at or 1.0, done.machines.values()
    worked = sum(one.busy_s * one.speed for one in machines)
    waits: dict[str, list[float]] = {}
    for kind, wait in done.waits.values():
        waits.setdefault(kind, []).append(wait)
    return SimulatedRun(
        way=way,
        seed=seed,
        bound_s=bound,
        makespan_s=done.ended_at,
        ratio=done.ended_at / bound if bound else 1.0,
        loads=sum(one.loads for one in machines),
        utilisation=worked / (span * sum(one.speed for one in machines)),
        waits={kind: _waits(sorted(found)) for kind, found in sorted(waits.items())},
        workers={one.name: Usage(one.busy_s / span, one.loading_s / span) for one in machines},
        succeeded=done.succeeded,
        failed=done.failed,
    )


def _waits(found: Sequence[float]) -> Waits:
    return Waits(len(found), quantile(found, 0.5), quantile(found, 0.95), found[-1])


def summed(runs: Sequence[SimulatedRun]) -> dict[str, Summed]:
    """By way, in the order of the runs."""
    ways = dict.fromkeys(run.way for run in runs)
    return {way: _sum([run for run in runs if run.way == way]) for way in ways}


def _sum(runs: Sequence[SimulatedRun]) -> Summed:
    ratios = [run.ratio for run in runs]
    return Summed(
        makespan_s=fmean(run.makespan_s for run in runs),
        bound_s=fmean(run.bound_s for run in runs),
        ratio=fmean(ratios),
        ratio_best=min(ratios),
        ratio_worst=max(ratios),
        loads=fmean(run.loads for run in runs),
        utilisation=fmean(run.utilisation for run in runs),
        waits={
            kind: _sum_waits([run.waits[kind] for run in runs if kind in run.waits])
            for kind in runs[0].waits
        },
        workers={
            name: Usage(
                fmean(run.workers[name].working for run in runs),
                fmean(run.workers[name].loading for run in runs),
            )
            for name in runs[0].workers
        },
        failed_most=max(run.failed for run in runs),
    )


def _sum_waits(found: Sequence[Waits]) -> WaitsSummed:
    return WaitsSummed(
        jobs=found[0].jobs,
        p50_s=fmean(waits.p50_s for waits in found),
        p95_s=fmean(waits.p95_s for waits in found),
        p95_worst_s=max(waits.p95_s for waits in found),
        max_s=max(waits.max_s for waits in found),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that this share of all values does not exceed.

    >>> quantile([1, 2, 3, 4], 0.5), quantile([1, 2, 3, 4], 0.95)
    (2, 4)
    """
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
