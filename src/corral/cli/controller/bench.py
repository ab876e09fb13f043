"""`corral bench`: how fast a person's own cluster is, measured as their programs would see it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Annotated

import typer

from corral.cli.terminal import output
from corral.cli.terminal.arguments import AsJson, client_of_this_home
from corral.core.errors import Unavailable

if TYPE_CHECKING:
    from corral.contract.views import Health
    from corral.sdk.client import Client
NOWHERE = "corral-bench-waits"
"""A label that no worker has: what is only submitted must wait, and is cancelled afterwards."""

CONTROLLER_WITHIN_S = 3.0


def bench(
    jobs: Annotated[int, typer.Option(min=10, help="How many jobs run end to end.")] = 2000,
    calls: Annotated[int, typer.Option(min=10, help="How many calls are timed one by one.")] = 300,
    as_json: AsJson = False,
) -> None:
    """Measures the running controller with jobs that do nothing: rate, latency, submissions."""
    with client_of_this_home() as client:
        health = _with_a_worker(client)
        if health.queued or health.running:
            output.say(
                f"{health.queued} jobs wait and {health.running} run here: the figures are those "
                "of a busy system.",
                style="yellow",
            )
        found = _measure(client, jobs, calls)
    if as_json:
        output.show_json({"workers": health.workers, **found})
        return
    output.show_pairs((name, _told(found[key], unit)) for key, name, unit in _SHOWN)


def _with_a_worker(client: Client) -> Health:
    """A controller that has just been started may still wait for its own."""
    if not output.waited(lambda: client.health().workers, CONTROLLER_WITHIN_S):
        raise Unavailable("No worker is connected, so nothing would run. See `corral workers`.")
    return client.health()


_SHOWN = (
    ("end_to_end_per_s", "end to end", "jobs/s"),
    ("latency_p50_ms", "latency, p50", "ms"),
    ("latency_p99_ms", "latency, p99", "ms"),
    ("submit_one_by_one_per_s", "submit, one by one", "/s"),
    ("submit_64_in_flight_per_s", "submit, 64 in flight", "/s"),
    ("submit_batches_per_s", "submit, batches of 1,000", "/s"),
)


def _told(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def _measure(client: Client, jobs: int, calls: int) -> dict[str, float]:
    from corral.sdk import figures
    from corral.sdk.aio import AsyncClient

    figures.warm_up(client, min(jobs, 200))
    rate = figures.end_to_end(client, jobs)
    waits = figures.latencies(client, calls)
    batch = f"bench-{uuid.uuid4().hex[:12]}"

    async def rest() -> dict[str, float]:
        async with AsyncClient() as asynchronous:
            flying = await figures.submit_in_flight(
                asynchronous, jobs, batch=batch, worker_labels=[NOWHERE]
            )
            batches = await figures.submit_in_batches(
                asynchronous, max(jobs, 1000), batch=batch, worker_labels=[NOWHERE]
            )
        return {"submit_64_in_flight_per_s": flying, "submit_batches_per_s": batches}

    try:
        one_by_one = figures.submit_one_by_one(client, calls, batch=batch, worker_labels=[NOWHERE])
        return {
            "end_to_end_per_s": rate,
            "latency_p50_ms": figures.quantile(waits, 0.5) * 1000,
            "latency_p99_ms": figures.quantile(waits, 0.99) * 1000,
            "submit_one_by_one_per_s": one_by_one,
            **figures.wait_for(rest()),
        }
    finally:  # leaves nothing behind in somebody's queue
        client.open_batch(batch).cancel()
