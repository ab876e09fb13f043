"""What the agents engine alone has to get right: silence, doubled claims, doubled results."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.frames import Frame, Opcode
from websockets.protocol import Event

from corral.api.workers.worker_socket import WorkerSocket
from corral.core.events import AttemptExited, AttemptReturned, WorkerJoined, WorkerLost
from corral.core.job import Needs
from corral.core.limits import InputLimits
from corral.core.worker import NAMES_BYTES, Capabilities, ImageServer, Model, Reading, Wishes
from corral.engines.agents import INBOX_LIMIT, AgentsEngine
from corral.engines.dialled_workers import ASLEEP_S
from corral.engines.engine import Attempt
from corral.engines.reports import RECEIPT_S
from corral.protocol import messages as wire
from corral.server.listening import http_server
from tests.engines.conftest import AgentsLab, agents, agents_lab, roster


@contextlib.asynccontextmanager
async def served(*, heartbeat_s: float) -> AsyncIterator[tuple[AgentsEngine, str]]:
    """An engine behind a real socket, and where that is."""
    engine = agents()
    door = WorkerSocket(engine, roster(), heartbeat_s=heartbeat_s, grace_s=60.0)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await door.serve(WebSocket(scope, receive, send))

    listening = socket.create_server(("127.0.0.1", 0))
    server = http_server(app, InputLimits(), 8, None, None)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield engine, f"ws://127.0.0.1:{listening.getsockname()[1]}/worker"
    finally:
        server.should_exit = True
        await serving
        listening.close()


async def test_a_silent_worker_is_gone_after_three_beats_and_its_grace(tmp_path: Path) -> None:
    async with agents_lab(tmp_path) as lab:
        assert isinstance(lab, AgentsLab)
        reading = asyncio.create_task(lab.read())
        os.kill(lab.pid, signal.SIGSTOP)
        try:
            (lost,) = await lab.until(WorkerLost)
        finally:
            os.kill(lab.pid, signal.SIGCONT)
            reading.cancel()
        assert isinstance(lost, WorkerLost)


async def test_a_worker_of_whom_nothing_is_read_is_not_silent() -> None:
    """While the disk is full nobody takes what it says, for hours perhaps. It stays connected, and
    hears that we are there."""
    async with served(heartbeat_s=0.3) as (engine, url):
        line = await connect(url, additional_headers={"Authorization": "Bearer x"}, proxy=None)
        stirred = asyncio.Event()
        process_event = line.process_event

        def heard(event: Event) -> None:
            if isinstance(event, Frame) and event.opcode is Opcode.PONG:
                stirred.set()
            process_event(event)

        line.process_event = heard  # type: ignore[method-assign]
        await line.send(wire.encode([register("w")]))
        await line.recv()
        engine.start(attempt("w"))
        await line.send(wire.encode([wire.JobOutput("j", 1, "stdout", "x" * INBOX_LIMIT)]))
        async with asyncio.timeout(30):
            await stirred.wait()  # longer than a silent one would be waited for
        assert engine.workers()[0].connected
        events = engine.events()
        assert len(await anext(events)) == 2
        async with asyncio.timeout(30):
            await line.wait_closed()  # now it is silent
        assert not engine.workers()[0].connected


async def test_the_grace_of_a_silent_worker_began_with_its_last_word() -> None:
    engine = agents()
    line = Line()
    engine.join(line, register("w"))
    engine.start(attempt("w"))
    events = engine.events()
    await anext(events)
    engine.leave(line, "w", silent_s=59.99)
    async with asyncio.timeout(60):
        (lost,) = await anext(events)
    assert isinstance(lost, WorkerLost)


async def test_a_worker_that_leaves_takes_nothing_new_until_it_is_back() -> None:
    engine = agents()
    engine.join(Line(), register("w"))
    engine.hear("w", [wire.WorkerHeartbeat()])
    assert not engine.workers()[0].draining
    engine.hear("w", [wire.WorkerHeartbeat(leaving=True)])
    assert engine.workers()[0].draining
    engine.wish("w")
    assert engine.workers()[0].draining, "whatever the operator wishes meanwhile"
    engine.join(Line(), register("w"))
    assert not engine.workers()[0].draining


async def test_goodbye_frees_at_once() -> None:
    engine = agents(grace_s=3600.0)
    line = Line()
    engine.join(line, register("w"))
    engine.start(attempt("w"))
    events = engine.events()
    await anext(events)
    engine.hear("w", [wire.WorkerGoodbye(reason="bedtime")])
    (lost,) = await anext(events)
    assert isinstance(lost, WorkerLost)
    assert lost.expected
    assert not await engine.running()


async def test_who_said_goodbye_has_left_and_is_not_missed() -> None:
    engine = agents(grace_s=0.01)
    engine.join(Line(), register("w"))
    engine.hear("w", [wire.WorkerHeartbeat(leaving=True), wire.WorkerGoodbye(reason="bedtime")])
    (gone,) = engine.workers()
    assert (gone.connected, gone.draining, gone.left) == (False, False, True)
    later = agents([gone], grace_s=0.01)
    later.open()
    events = later.events()
    later.join(Line(), register("other"))  # the first that is heard of
    assert [type(one) for one in await anext(events)] == [WorkerJoined]
    later.join(Line(), register("w"))
    assert not any(worker.left for worker in later.workers())


async def test_a_controller_that_stops_drains_its_own_machine_alone() -> None:
    engine = agents(local_id="here")
    here, there = Line(), Line()
    engine.join(here, register("here"))
    engine.join(there, register("there"))
    drained = asyncio.ensure_future(engine.drain(5.0))
    await asyncio.sleep(0)
    assert here.sent == [wire.Drain(grace_s=5.0)]
    assert not there.sent
    assert not drained.done()
    engine.hear("here", [wire.WorkerGoodbye()])
    await asyncio.wait_for(drained, 5)


class Line:
    """A session that keeps what it is sent."""

    paused = False

    def __init__(self) -> None:
        self.sent: list[wire.FromController] = []
        self._heard = asyncio.Event()

    async def until(self, count: int) -> None:
        """Until it was sent so much."""
        async with asyncio.timeout(60):
            while len(self.sent) < count:
                self._heard.clear()
                await self._heard.wait()

    def rename(self, name: str) -> None:
        self.sent.append(wire.WorkerWelcome(name=name, heartbeat_s=5.0, grace_s=30.0))

    def send(self, message: wire.FromController) -> None:
        self.sent.append(message)
        self._heard.set()

    mention = send

    def close(self, code: int, reason: str) -> None:
        pass

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False


def register(name: str, *attempts: tuple[str, int]) -> wire.WorkerRegister:
    can = Capabilities(cpus=1, memory_gb=1, workloads=("python",))
    return wire.WorkerRegister(name, "0", wire.VERSION, can, attempts=attempts)


def attempt(worker: str, job: str = "j") -> Attempt:
    return Attempt(job, 1, Raw(b"{}"), "d", "t", Needs(), worker=worker)


def completed() -> wire.JobCompleted:
    return wire.JobCompleted(job="j", attempt=1, at=1.0, seconds=1.0, digest="d")


async def test_a_worker_remembers_until_its_process_is_another() -> None:
    first = agents(grace_s=1.0)
    one = replace(register("w"), incarnation="one")
    known = first.join(Line(), one)
    first.join(Line(), one)
    assert await _remember(first) == [False, True]
    again = agents([known], grace_s=1.0)
    again.join(Line(), one)
    again.join(Line(), replace(one, incarnation="two"))
    again.join(Line(), replace(one, incarnation=""))
    again.join(Line(), replace(one, incarnation=""))
    assert await _remember(again) == [True, False, False, False]


async def _remember(engine: AgentsEngine) -> list[bool]:
    reports = await anext(engine.events())
    return [one.remembers for one in reports if isinstance(one, WorkerJoined)]


async def test_a_claim_on_anothers_attempt_takes_nothing_away(tmp_path: Path) -> None:
    engine = agents(grace_s=1.0)
    owner, thief = Line(), Line()
    engine.join(owner, register("owner"))
    engine.start(attempt("owner"))
    engine.join(thief, register("thief", ("j", 1)))
    engine.hear("thief", [completed()])
    engine.hear("owner", [completed()])
    async for reports in engine.events():
        exits = [report for report in reports if isinstance(report, AttemptExited)]
        assert [report.worker for report in exits] == ["owner"]
        break


async def test_a_claim_hides_nothing_from_whom_it_is_placed_on_later() -> None:
    """What somebody says it has before it is placed anywhere was not sent to it."""
    engine = agents()
    owner, thief = Line(), Line()
    engine.join(thief, register("thief", ("j", 1)))
    engine.join(owner, register("owner"))
    engine.start(attempt("owner"))
    assert [type(one) for one in owner.sent] == [wire.JobDispatch]
    assert list(await engine.running()) == [("j", 1)]
    events = engine.events()
    (joined, _) = await anext(events)
    assert isinstance(joined, WorkerJoined)
    assert not joined.attempts
    engine.hear("thief", [completed(), wire.JobOutput("j", 1, "stdout", "mine")])
    engine.hear("thief", [wire.WorkerGoodbye()])
    (lost,) = await anext(events)
    assert isinstance(lost, WorkerLost), "and nothing that it said of the attempt"
    assert list(await engine.running()) == [("j", 1)]
    await engine.stop("j", 1, grace_s=1.0)
    assert isinstance(owner.sent[-1], wire.JobCancel)


async def test_what_nobody_wants_of_a_worker_it_is_told_to_stop() -> None:
    engine = agents(
        grace_s=60.0,
        placed_on=lambda job, attempt: "w" if job == "wanted" else "",
        stop_grace_s=7.0,
    )
    line = Line()
    engine.join(line, register("w", ("wanted", 1), ("lost", 3)))
    assert line.sent == [wire.JobCancel(job="lost", attempt=3, grace_s=7.0)]
    assert list(await engine.running()) == [("wanted", 1)]
    events = engine.events()
    (joined,) = await anext(events)
    assert isinstance(joined, WorkerJoined)
    assert joined.attempts == (("wanted", 1),)
    late = wire.JobCompleted(job="lost", attempt=3, at=1.0, seconds=1.0, digest="d")
    engine.hear("w", [wire.JobStarted("lost", 3, 1.0), late])
    (exited,) = await anext(events)
    assert isinstance(exited, AttemptExited), "its result is still heard, and nothing else"
    engine.join(Line(), register("another"))
    await anext(events)
    assert isinstance(line.sent[-1], wire.ResultReceived)


async def test_a_controller_that_was_stopped_waits_for_absent_workers_anew() -> None:
    """Nobody could come back while it stood still."""
    engine = agents(grace_s=0.5)
    line = Line()
    engine.join(line, register("w"))
    events = engine.events()
    await anext(events)
    engine.leave(line, "w")
    time.sleep(0.5 + ASLEEP_S + 0.1)  # noqa: ASYNC251 (like SIGSTOP: nothing of this process runs)
    await asyncio.sleep(0.1)  # timers fire, those that are long due first
    engine.join(Line(), register("w"))
    reports = await anext(events)
    assert [type(report) for report in reports] == [WorkerJoined]


async def test_a_result_told_twice_is_reported_once_and_received_both_times() -> None:
    engine = agents(grace_s=1.0)
    line = Line()
    engine.join(line, register("w"))
    engine.start(attempt("w"))
    engine.hear("w", [completed()])
    events = engine.events()
    reports = list(await anext(events))
    engine.hear("w", [wire.WorkerGoodbye()])
    reports += await anext(events)  # asking for it says that the first ones are on disk
    assert sum(isinstance(report, AttemptExited) for report in reports) == 1
    assert not [sent for sent in line.sent if isinstance(sent, wire.ResultReceived)]  # it left
    again = Line()
    engine.join(again, register("w"))
    engine.hear("w", [completed(), completed()])
    reports = list(await anext(events))
    assert not [report for report in reports if isinstance(report, AttemptExited)]
    assert sum(isinstance(sent, wire.ResultReceived) for sent in again.sent) == 2


async def test_a_message_after_goodbye_is_nobodys() -> None:
    engine = agents(grace_s=1.0)
    line = Line()
    engine.join(line, register("w"))
    engine.hear("w", [wire.WorkerGoodbye(), completed()])
    assert not line.sent


async def test_what_is_placed_on_a_worker_that_has_left_is_given_back() -> None:
    """Its loss was reported before anybody knew of the placement."""
    engine = agents()
    gone, away = Line(), Line()
    engine.join(gone, register("gone"))
    engine.join(away, register("away"))
    engine.hear("gone", [wire.WorkerGoodbye()])
    engine.leave(away, "away")
    engine.start(attempt("away"))
    engine.start(attempt("gone"))
    reports = await anext(engine.events())
    returned = [report for report in reports if isinstance(report, AttemptReturned)]
    assert [report.worker for report in returned] == ["gone"], "the other one may be back in time"


async def test_nobody_hears_a_revoked_worker() -> None:
    engine = agents(grace_s=1.0)
    line = Line()
    engine.join(line, register("w", ("j", 1)))
    engine.revoke("w")
    told = list(line.sent)
    engine.hear("w", [wire.WorkerHeartbeat(), completed(), wire.WorkerGoodbye()])
    reports = await anext(engine.events())
    assert [type(report) for report in reports] == [WorkerJoined, WorkerLost]
    assert line.sent == told


@pytest.mark.parametrize(
    "message",
    [wire.JobOutput("j", 1, "stdout", "x"), wire.JobProgress("j", 1), wire.JobStarted("j", 1, 1.0)],
)
async def test_a_worker_that_says_too_much_is_not_read_until_the_intake_is_there(
    message: wire.FromWorker,
) -> None:
    engine = agents(grace_s=60, placed_on=lambda job, attempt: "w")
    line, again = Line(), Line()
    engine.join(line, register("w", ("j", 1)))
    engine.hear("w", [wire.WorkerHeartbeat()], INBOX_LIMIT + 1)
    assert not line.paused, "for this nobody has to be there"
    engine.hear("w", [message], INBOX_LIMIT + 1)
    assert line.paused
    engine.join(again, register("w", ("j", 1)))
    assert again.paused, "to dial again is no way around it"
    await anext(engine.events())
    assert not line.paused
    assert not again.paused


async def test_of_very_long_lists_of_models_the_beginning_is_kept() -> None:
    """Everybody's list of workers has them, and their bytes count there."""
    engine = agents()
    names = tuple(f"{number:05}{'説' * 4_000}" for number in range(2_000))
    models = tuple(Model(name) for name in names)
    can = Capabilities(cpus=1, memory_gb=1, models_present=names)
    engine.join(Line(), replace(register("w"), capabilities=can, models=models))
    registered = engine.workers()[0]
    engine.hear("w", [wire.WorkerHeartbeat(models=models, models_loaded=names)])
    for worker in (registered, engine.workers()[0]):
        assert len(wire.encode(worker)) < 4 * NAMES_BYTES
        assert worker.models == models[: len(worker.models)]
        assert worker.capabilities.models_present == names[: len(worker.models)]


def output(n: int, job: str = "j") -> wire.JobOutput:
    return wire.JobOutput(job, 1, "stdout", "x", n=n)


def receipts(line: Line) -> list[wire.FromController]:
    kinds = (wire.OutputReceived, wire.ResultReceived)
    return [sent for sent in line.sent if isinstance(sent, kinds)]


async def test_output_is_received_once_it_is_written_and_one_word_stands_for_much() -> None:
    engine = agents(grace_s=60)
    line = Line()
    engine.join(line, register("w"))
    engine.start(attempt("w"))
    engine.start(attempt("w", "k"))
    events = engine.events()
    await anext(events)
    engine.hear("w", [output(n) for n in range(1, 100)] + [output(1, "k"), output(2, "k")])
    await anext(events)
    assert not receipts(line), "nobody has written it yet"
    reading = asyncio.ensure_future(anext(events))
    await line.until(3)
    assert receipts(line) == [wire.OutputReceived((("j", 1, 99), ("k", 1, 2)))]
    engine.hear("w", [output(100), completed()])
    await reading
    engine.hear("w", [output(3, "k")])
    await anext(events)
    reading = asyncio.ensure_future(anext(events))
    await line.until(5)
    reading.cancel()
    received = wire.ResultReceived("j", 1)
    assert receipts(line)[1:] == [received, wire.OutputReceived((("k", 1, 3),))], "it says all"


async def test_output_that_nobody_wants_is_received_too() -> None:
    """Or its worker would keep it."""
    engine = agents(grace_s=60)
    line = Line()
    engine.join(line, register("w"))
    engine.hear("w", [output(7), output(8)])
    await line.until(1)
    assert receipts(line) == [wire.OutputReceived((("j", 1, 8),))]


async def test_a_worker_that_numbers_nothing_hears_nothing_of_its_output() -> None:
    """It would not know the message."""
    engine = agents(grace_s=60)
    line = Line()
    engine.join(line, register("w"))
    engine.start(attempt("w"))
    engine.hear("w", [output(0), wire.JobProgress("j", 1, 0.5), completed()])
    events = engine.events()
    await anext(events)
    reading = asyncio.ensure_future(anext(events))
    await line.until(2)
    await asyncio.sleep(2 * RECEIPT_S)  # for what must not come
    reading.cancel()
    assert receipts(line) == [wire.ResultReceived("j", 1)]


def beat(*readings: Reading, **more: Any) -> wire.WorkerHeartbeat:
    return wire.WorkerHeartbeat(readings=readings, **more)


async def test_a_heartbeat_tells_what_others_hold_and_wakes_only_where_that_changed() -> None:
    engine = agents(grace_s=1.0)
    woken = 0

    def wake() -> None:
        nonlocal woken
        woken += 1

    engine.changed = wake
    engine.join(Line(), register("w"))
    engine.hear("w", [beat(Reading("g", 24.0, temperature_c=40.0), load=0.5)])
    assert woken == 0
    engine.hear("w", [beat(Reading("g", 4.0, others_gb=20.0, temperature_c=41.0))])
    (worker,) = engine.workers()
    assert worker.taken == (("g", 20.0),)
    assert worker.readings[0].temperature_c == 41.0
    engine.hear("w", [beat(Reading("g", 4.0, others_gb=20.0, temperature_c=42.0))])
    assert woken == 1
    engine.hear("w", [beat(Reading("g", 24.0))])
    assert (woken, engine.workers()[0].taken) == (2, ())


async def test_a_heartbeat_tells_which_models_there_are_now() -> None:
    engine = agents(grace_s=1.0, wishes=lambda worker: Wishes(labels=("ssd",)))
    engine.join(Line(), register("w"))
    engine.hear("w", [beat(models=(Model("sdxl", 7, "ab"),), models_loaded=("sdxl",))])
    engine.hear("w", [beat(models_loaded=("sdxl",))])
    (worker,) = engine.workers()
    assert worker.models == (Model("sdxl", 7, "ab"),)
    assert worker.capabilities.models_present == ("sdxl",)
    assert (worker.models_loaded, worker.capabilities.labels) == (("sdxl",), ("ssd",))
    engine.wish("w")
    assert engine.workers()[0].capabilities.models_present == ("sdxl",)


async def test_more_names_of_image_servers_than_are_kept_are_none() -> None:
    engine = agents(grace_s=1.0)
    engine.join(Line(), register("w"))
    long = tuple(f"{n:0512}" for n in range(2_000))
    names = {"sampler": ("Euler",), "LoRA": long, "VAE": long, "upscaler": long}
    engine.hear("w", [beat(servers=(ImageServer("webui", "http://a", names=names),))])
    (server,) = engine.workers()[0].servers
    assert server.names["sampler"] == ("Euler",)
    assert sum(len(one) for some in server.names.values() for one in some) <= NAMES_BYTES
