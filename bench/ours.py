"""What is measured of Corral, round by round, each part on a controller in a new home."""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.controllers import TWO_SLOTS, Controller, held_slots
from corral.sdk import figures
from corral.sdk.aio import AsyncClient
from corral.sdk.client import Client


class Sizes:
    """How much of everything; `--quick` proves only that it runs."""

    def __init__(self, *, quick: bool) -> None:
        self.jobs = 300 if quick else 10_000
        self.latencies = 50 if quick else 500
        self.one_by_one = 100 if quick else 2_000
        self.in_flight = 200 if quick else 6_000
        self.batched = 2_000 if quick else 40_000
        self.backlogs = (1_000, 2_000) if quick else (1_000, 100_000)
        self.backlog_pairs = 1 if quick else 3
        self.accepted = 100 if quick else 1_000
        self.warm_starts = 20 if quick else 200
        self.fresh_starts = 3 if quick else 30
        self.requirements = () if quick else ("six",)
        self.idle_s = 0.2 if quick else 3.0


def measure(folder: Path, sizes: Sizes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, part in enumerate((cold_start, speed, backlog, runner_killed, controller_killed)):
        found |= part(folder / f"corral-{number}", sizes)
    return found


def cold_start(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """`corral up` in an empty home to the first result, and what it all weighs afterwards."""
    controller = Controller(folder)
    controller.launch()
    try:
        while not (controller.home / "controller.json").exists():
            time.sleep(0.002)
        controller.until_healthy()
        with Client(home=controller.door) as client:
            client.run(figures.no_op(), (figures.argument(0),), output=None)
            seconds = time.perf_counter() - controller.begun
            time.sleep(sizes.idle_s)
            weighed = [(one.memory_full_info(), one) for one in controller.tree()]
        return {
            "cold_start_s": seconds,
            "idle_pss_mb": sum(info.pss for info, _ in weighed) / 1e6,
            "idle_rss_mb": sum(info.rss for info, _ in weighed) / 1e6,
            "idle_processes": len(weighed),
        }
    finally:
        controller.__exit__(None, None, None)


def speed(folder: Path, sizes: Sizes) -> dict[str, Any]:
    settings = {"worker": {**TWO_SLOTS["worker"], "read_paths": [str(folder)]}}
    with Controller(folder, settings) as controller, Client(home=controller.door) as client:
        figures.warm_up(client)
        found: dict[str, Any] = {"end_to_end_per_s": figures.end_to_end(client, sizes.jobs)}
        figures.latencies(client, 20)
        waits = figures.latencies(client, sizes.latencies)
        found["latency_p50_ms"] = figures.quantile(waits, 0.5) * 1000
        found["latency_p99_ms"] = figures.quantile(waits, 0.99) * 1000
        found |= _starts(client, sizes)
        with held_slots(client, folder):
            found["submit_one_by_one_per_s"] = figures.submit_one_by_one(client, sizes.one_by_one)
            found |= figures.wait_for(_submits(controller.door, sizes))
        return found


async def _submits(door: Path, sizes: Sizes) -> dict[str, Any]:
    async with AsyncClient(home=door) as client:
        await client.health()
        return {
            "submit_64_in_flight_per_s": await figures.submit_in_flight(client, sizes.in_flight),
            "submit_batches_per_s": await figures.submit_in_batches(client, sizes.batched),
        }


def _starts(client: Client, sizes: Sizes) -> dict[str, Any]:
    """From the call of `run` to the first line of user code, by the clock both share."""

    def started(_: str) -> float:
        import time

        return time.time()

    def waits(count: int, *, fresh: bool) -> float:
        found = []
        for number in range(count):
            begun = time.time()
            at = client.run(
                started,
                (figures.argument(number),),
                output=None,
                fresh=fresh,
                requirements=sizes.requirements,
            )
            found.append((at - begun) * 1000)
        return statistics.median(found)

    waits(3, fresh=False)  # builds the environment
    return {
        "start_warm_p50_ms": waits(sizes.warm_starts, fresh=False),
        "start_fresh_p50_ms": waits(sizes.fresh_starts, fresh=True),
    }


def backlog(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """How fast jobs are worked off in front of a short and of a long queue of the same kind. All
    are accepted while the slots are held, so that nothing but the queue differs. Each takes two
    seconds, in which a shared machine may do anything: several pairs, one after the other."""
    pairs = []
    for number in range(sizes.backlog_pairs):
        place = folder / str(number)
        pairs.append([_worked_off(place / str(length), length, sizes) for length in sizes.backlogs])
    return {
        "before_short_queue_per_s": statistics.median(short for short, _ in pairs),
        "before_long_queue_per_s": statistics.median(long for _, long in pairs),
        "queue_ratio": statistics.median(long / short for short, long in pairs),
    }


def _worked_off(place: Path, waiting: int, sizes: Sizes) -> float:
    """Jobs a second in front of that many others. The worker is never idle, so while the last of
    those in front end it works on others too; they count, of a short queue and of a long one."""
    settings = {"worker": {**TWO_SLOTS["worker"], "read_paths": [str(place)]}}
    with Controller(place, settings) as controller, Client(home=controller.door) as client:
        figures.warm_up(client)
        with held_slots(client, place) as release:
            ahead = figures.wait_for(_fill(controller.door, waiting, sizes.jobs))
            queued = client.health().queued
            assert queued > waiting, f"only {queued} were waiting when the slots came free"
            before, begun = _living(client), time.perf_counter()
            release()
            figures.wait_for(_missing(controller.door, "ahead", set(ahead)))
            seconds = time.perf_counter() - begun
            return (before - _living(client)) / seconds


def _living(client: Client) -> int:
    health = client.health()
    return health.queued + health.running


async def _fill(door: Path, waiting: int, ahead: int) -> list[str]:
    async with AsyncClient(home=door) as client:
        await figures.submit_in_batches(client, waiting, priority=-100)
        items = [figures.argument(number) for number in range(ahead)]
        accepted = await client.submit_map(figures.no_op(), items, priority=50, batch="ahead")
        return [handle.id for handle in accepted]


async def _accept(door: Path, function: Callable[[int], int], count: int) -> list[str]:
    async with AsyncClient(home=door) as client:
        accepted = await client.submit_map(function, range(count), batch="killed")
        return [handle.id for handle in accepted]


async def _missing(
    door: Path, batch: str, accepted: set[str], since: float = 0.0
) -> tuple[int, float]:
    """How many never succeed, and when the first end that happened since then was seen."""
    first = 0.0
    async with AsyncClient(home=door) as client:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(300):
                async for events in client._connection.watch(batch=batch):
                    for event in events:
                        if event.at > since and not first:
                            first = time.perf_counter()
                        if event.ended.state == "succeeded":
                            accepted.discard(event.job_id)
                    if not accepted:
                        break
    return len(accepted), first


def runner_killed(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """kill -9 of the process that runs a job, until the job runs again."""

    def work() -> None:
        import os
        import time

        import corral

        print(os.getpid(), time.time(), flush=True)
        while corral.job.attempt() == 1:
            time.sleep(0.01)

    with Controller(folder) as controller, Client(home=controller.door) as client:
        figures.warm_up(client)
        handle = client.submit(work)
        lines = handle.logs()
        pid, _ = next(lines).split()
        killed = time.time()
        os.kill(int(pid), 9)
        text = "".join(lines)
        return {"runner_killed_s": float(text.split()[1]) - killed}


def controller_killed(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """kill -9 of a controller that has accepted jobs: what is lost, and when work goes on."""

    def short(number: int) -> int:
        import time

        time.sleep(0.005)
        return number

    with Controller(folder) as controller:
        with Client(home=controller.door) as client:
            figures.warm_up(client)
            accepted = figures.wait_for(_accept(controller.door, short, sizes.accepted))
        controller.kill()
        restarted = time.time()
        controller.launch()
        controller.until_healthy()
        healthy = time.perf_counter() - controller.begun
        lost, first = figures.wait_for(
            _missing(controller.door, "killed", set(accepted), restarted)
        )
        return {
            "controller_killed_lost": lost,
            "controller_killed_healthy_s": healthy,
            "controller_killed_working_s": first - controller.begun,
        }
