"""map: order, laziness, bounds, failures, and what it costs on the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

import corral
from corral.sdk.aio import AsyncClient
from corral.sdk.client import Client
from tests.sdk.orchestrator import Orchestrator, Served


def double(x: int) -> int:
    return 2 * x


def picky(x: int) -> int:
    if x == 3:
        raise ValueError("three")
    return x


def test_ordered_and_batched(client: Client, orchestrator: Orchestrator) -> None:
    assert list(client.map(double, range(1200))) == [2 * x for x in range(1200)]
    assert sum(orchestrator.sizes) == 1200
    assert max(orchestrator.sizes) == 500
    assert orchestrator.calls["WatchJobs"] == 1
    batches = {record.submission.batch for record in orchestrator.jobs.values()}
    keys = {record.submission.idempotency_key for record in orchestrator.jobs.values()}
    assert len(batches) == 1
    assert len(keys) == 1200


def test_unordered_yields_what_is_there(client: Client, served: Served) -> None:
    served.orchestrator.hold = True
    results = client.map(double, range(4), ordered=False, outstanding=4)
    served.orchestrator.hold = False
    assert sorted(results) == [0, 2, 4, 6]


def test_nothing_to_do(client: Client, orchestrator: Orchestrator) -> None:
    assert list(client.map(double, [])) == []
    assert not orchestrator.jobs


def test_no_more_is_read_than_may_be_outstanding(client: Client) -> None:
    read = 0

    def source() -> Iterator[int]:
        nonlocal read
        while read < 1000:
            read += 1
            yield read

    results = client.map(double, source(), outstanding=10)
    assert next(results) == 2
    assert read <= 20
    results.close()  # type: ignore[attr-defined]
    assert read <= 20


def test_leaving_early_cancels_the_rest(client: Client, served: Served) -> None:
    served.orchestrator.hold = True
    results = client.map(double, range(100), outstanding=50)
    with pytest.raises(TimeoutError):
        _next_within(results, 0.3)
    states = [record.state for record in served.orchestrator.jobs.values()]
    assert states == ["cancelled"] * 50


def _next_within(results: Iterator[int], seconds: float) -> None:
    """Asks for a result that never comes, and is interrupted as by Ctrl-C."""
    import signal

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        next(results)
    except KeyboardInterrupt:
        raise TimeoutError from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_failure_raises_in_its_turn(client: Client) -> None:
    got: list[int] = []
    with pytest.raises(corral.JobFailed, match="ValueError: three"):
        got.extend(client.map(picky, range(6)))
    assert got == [0, 1, 2]


def test_errors_as_values(client: Client) -> None:
    got = list(client.map(picky, range(5), return_exceptions=True))
    assert got[:3] == [0, 1, 2]
    assert isinstance(got[3], corral.JobFailed)
    assert got[4] == 4


def test_large_function_is_stored_once(client: Client, orchestrator: Orchestrator) -> None:
    ballast = bytes(range(256)) * 100

    def weigh(x: int) -> int:
        return len(ballast) + x

    assert list(client.map(weigh, range(3))) == [25_600, 25_601, 25_602]
    assert orchestrator.calls["PutPackage"] == 1
    submitted = next(iter(orchestrator.jobs.values())).submission.function
    assert submitted.function.data == b""


def test_large_arguments_and_results(client: Client, orchestrator: Orchestrator) -> None:
    items = [bytes(2_000_000), b"small"]
    assert list(client.map(lambda data: data, items)) == items
    assert orchestrator.calls["PutPackage"] == 1
    assert orchestrator.calls["GetBlob"] == 1


def test_a_lost_answer_and_a_cut_stream_change_nothing(
    client: Client, orchestrator: Orchestrator
) -> None:
    orchestrator.forget_answers = 1
    orchestrator.cut_after = 0
    client.health()
    assert list(client.map(double, range(20))) == [2 * x for x in range(20)]
    assert len(orchestrator.jobs) == 20
    assert orchestrator.calls["WatchJobs"] >= 2


async def test_async_map_over_async_items(aclient: AsyncClient) -> None:
    async def source() -> AsyncIterator[int]:
        for x in range(10):
            yield x

    assert [value async for value in aclient.map(double, source())] == [2 * x for x in range(10)]
    found = [value async for value in aclient.map(double, range(1200))]
    assert found == [2 * x for x in range(1200)]
