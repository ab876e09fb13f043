"""How fast a controller is, as its clients see it: what `corral bench` and `make bench` measure.

Every call goes through the public clients, with a no-op function and an argument of 1 kB. The
controller answers a submission only after its fsync, so every figure here is a durable one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, Unpack

from corral.sdk.aio import AsyncClient
from corral.sdk.bridge import shared_bridge
from corral.sdk.client import Client
from corral.sdk.submit.submission import Options

T = TypeVar("T")

ARGUMENT_BYTES = 1024


def argument(number: int) -> str:
    """1 kB that no other job has."""
    return f"{number:<{ARGUMENT_BYTES}}"


def no_op() -> Callable[[Any], None]:
    """Does nothing. Made inside a function, so that it travels by value as a user's own does."""

    def nothing(_: Any) -> None:
        return None

    return nothing


def quantile(values: Sequence[float], share: float) -> float:
    """
    >>> quantile([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 0.5), quantile([1, 2, 3], 0.99)
    (5, 3)
    """
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1)]


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs it on the loop of the synchronous clients: grpc.aio is at its best with a single one."""
    return shared_bridge().call(coroutine)


def warm_up(client: Client, count: int = 200) -> None:
    """Starts the runners and uses everything once, so that a system at work is measured."""
    for _ in client.map(no_op(), map(argument, range(count))):
        pass


def end_to_end(client: Client, count: int, **options: Unpack[Options]) -> float:
    """Jobs a second through `map`, until the last result is at the client."""
    items = [argument(number) for number in range(count)]
    begun = time.perf_counter()
    found = sum(1 for _ in client.map(no_op(), items, **options))
    seconds = time.perf_counter() - begun
    assert found == count, f"{count - found} results are missing"
    return count / seconds


def latencies(client: Client, count: int) -> list[float]:
    """Seconds from `run` to its value, one call after the other on an idle system."""
    function, measured = no_op(), []
    for number in range(count):
        begun = time.perf_counter()
        client.run(function, (argument(number),), output=None)
        measured.append(time.perf_counter() - begun)
    return measured


def submit_one_by_one(client: Client, count: int, **options: Unpack[Options]) -> float:
    """Acknowledged submissions a second, each sent after the answer to the one before."""
    function = no_op()
    begun = time.perf_counter()
    for number in range(count):
        client.submit(function, (argument(number),), **options)
    return count / (time.perf_counter() - begun)


async def submit_in_flight(
    client: AsyncClient, count: int, flying: int = 64, **options: Unpack[Options]
) -> float:
    """Acknowledged submissions a second with this many of them on their way at any time."""
    function, numbers = no_op(), iter(range(count))

    async def submitter() -> None:
        for number in numbers:
            await client.submit(function, (argument(number),), **options)

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(flying):
            group.create_task(submitter())
    return count / (time.perf_counter() - begun)


async def submit_in_batches(client: AsyncClient, count: int, **options: Unpack[Options]) -> float:
    """Acknowledged submissions a second, a thousand in a message; pickling and encoding count."""
    items = [argument(number) for number in range(count)]
    begun = time.perf_counter()
    accepted = await client.submit_map(no_op(), items, **options)
    assert len(accepted) == count
    return count / (time.perf_counter() - begun)
