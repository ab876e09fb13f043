"""Interruptions: streams go on behind their cursor, submissions stay one job, patience ends."""

from __future__ import annotations

import asyncio

import pytest

from corral.contract import corral_pb2 as pb
from corral.contract.views import Output
from corral.core.errors import CorralError, Unavailable
from corral.sdk.aio import AsyncClient
from corral.sdk.transport.connection import Connection, Door, Patience
from tests.sdk.orchestrator import TOKEN, Orchestrator, Served


def shout() -> str:
    print("once")
    return "done"


async def test_cut_run_goes_on_behind_its_cursor(
    aclient: AsyncClient, orchestrator: Orchestrator
) -> None:
    seen: list[str] = []
    orchestrator.cut_after = 2
    result = await aclient.run(shout, output=lambda _, text: seen.append(text))
    assert (result, seen) == ("done", ["once\n"])
    assert orchestrator.watched == ["", "2"]


async def test_lost_answer_is_the_same_job(
    aclient: AsyncClient, orchestrator: Orchestrator
) -> None:
    await aclient.health()
    orchestrator.forget_answers = 1
    assert await aclient.run(shout, output=None) == "done"
    orchestrator.forget_answers = 1
    await aclient.submit(shout)
    assert len(orchestrator.jobs) == 2
    assert orchestrator.calls["SubmitJobs"] == 4


async def test_restart_of_the_controller(aclient: AsyncClient, served: Served) -> None:
    orchestrator = served.orchestrator
    orchestrator.hold = True
    handle = await aclient.submit(shout)
    events = handle.events()
    first = await anext(events)
    await asyncio.to_thread(served.stop)
    await asyncio.to_thread(served.start)
    await asyncio.to_thread(served.call, orchestrator.release)
    rest = [event async for event in events]
    assert [event.cursor for event in [first, *rest]] == ["1", "2", "3", "4"]
    assert [event.data for event in rest if isinstance(event, Output)] == [b"once\n"]
    assert await handle.result() == "done"


async def test_restart_seen_by_who_only_follows(aclient: AsyncClient, served: Served) -> None:
    """`corral logs -f ID`: the first thing this client ever asks is the stream itself."""
    served.orchestrator.hold = True
    job_id = (await aclient.submit(shout)).id
    async with AsyncClient(served.address, TOKEN) as other:
        events = other.job(job_id).events()
        await anext(events)
        await asyncio.to_thread(served.stop)
        await asyncio.to_thread(served.start)
        await asyncio.to_thread(served.call, served.orchestrator.release)
        assert [event.cursor async for event in events] == ["2", "3", "4"]


async def test_whoever_stops_waiting_cancels(aclient: AsyncClient, served: Served) -> None:
    served.orchestrator.hold = True
    accepted = asyncio.Event()
    running = asyncio.create_task(aclient.run(shout, output=lambda *_: accepted.set()))
    await asyncio.to_thread(served.orchestrator.accepted.wait, 10)
    job_id = next(iter(served.orchestrator.jobs))
    output = pb.Output(stream="stdout", data=b"x")
    await asyncio.to_thread(served.call, served.orchestrator.emit, job_id, output=output)
    await accepted.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert served.orchestrator.jobs[job_id].state == "cancelled"


async def test_patience_ends(served: Served) -> None:
    connection = Connection(Door(served.address, TOKEN), patience_s=0.2)
    await connection.call("HealthCheck", pb.HealthRequest())
    await asyncio.to_thread(served.stop)
    with pytest.raises(Unavailable, match="Lost the controller"):
        await connection.call("HealthCheck", pb.HealthRequest())
    await connection.close()
    await asyncio.to_thread(served.start)


async def test_only_interruptions_are_waited_out() -> None:
    patience = Patience(60)
    with pytest.raises(CorralError, match="no"):
        await patience.pause(CorralError("no"))
