"""The mailbox of engines whose attempts report by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from corral.core.errors import Conflict, InvalidRequest
from corral.core.events import (
    AttemptBegan,
    AttemptExited,
    AttemptOutput,
    EngineReport,
    WorkerLost,
)
from corral.core.frames import OutputFrame, ProgressFrame
from corral.core.job import Blob, Failure
from corral.engines.engine import EngineContext
from corral.engines.posted import Mailbox
from corral.home import Home
from corral.protocol.attempt_messages import (
    AttemptAnswer,
    AttemptMessages,
    BeganMessage,
    EndedMessage,
    MissingMessage,
    OutputMessage,
    ProgressMessage,
)
from corral.settings import Settings

ENDED = EndedMessage(at=2.0, seconds=1.0, digest="d", result=Blob.of(b"value"))
HELLO, THERE = OutputMessage("stdout", "hello"), OutputMessage("stdout", "there")


class Desk:
    """A mailbox, and an intake that writes down what it is given when it is told to."""

    def __init__(self, told: int = 0, placed: str = "w") -> None:
        context = EngineContext(Settings(), Home(Path()))
        context = replace(context, told=lambda *_: told, placed_on=lambda *_: placed)
        self.mailbox = Mailbox(context)
        self._events = self.mailbox.events()
        self._next: asyncio.Task[Sequence[EngineReport]] | None = None
        self.reports: list[EngineReport] = []

    async def write(self) -> list[EngineReport]:
        """What was reported since, now on disk: the next batch was asked for."""
        if self._next is None:
            self._next = asyncio.create_task(anext(self._events))  # type: ignore[arg-type]
        batch = list(await self._next)
        self.reports += batch
        self._next = asyncio.create_task(anext(self._events))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        return batch

    def post(
        self, *messages: object, after: int = 0, wait_s: float = 0
    ) -> asyncio.Task[AttemptAnswer]:
        batch = AttemptMessages(after, messages=messages, wait_s=wait_s)  # type: ignore[arg-type]
        return asyncio.create_task(self.mailbox.post("job", 1, "w", batch))

    async def posted(self, *messages: object, after: int = 0) -> AttemptAnswer:
        sent = self.post(*messages, after=after)
        await self.write()
        return await sent

    def outputs(self) -> list[tuple[str, int]]:
        frames = [one.frame for one in self.reports if isinstance(one, AttemptOutput)]
        return [(one.text, one.n) for one in frames if isinstance(one, OutputFrame)]

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.gather(self._next, return_exceptions=True)
        await self._events.aclose()  # type: ignore[attr-defined]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    yield made
    await made.close()


async def test_an_answer_comes_when_what_was_told_is_on_disk(desk: Desk) -> None:
    sent = desk.post(BeganMessage(at=1.0, devices=("gpu0",)), HELLO, ProgressMessage(0.5, "half"))
    events = desk._events
    first = await anext(events)
    await asyncio.sleep(0)
    assert not sent.done(), "it was taken, and is not on disk"
    desk._next = asyncio.create_task(anext(events))  # type: ignore[arg-type]
    assert await sent == AttemptAnswer(received=6)
    began, hello, half = first
    assert isinstance(began, AttemptBegan)
    assert began.devices == ("gpu0",)
    assert isinstance(hello, AttemptOutput)
    assert (hello.worker, hello.frame.n) == ("w", 5)
    assert isinstance(half, AttemptOutput)
    assert isinstance(half.frame, ProgressFrame)
    assert (half.frame.fraction, half.frame.message, half.frame.n) == (0.5, "half", 6)


async def test_what_is_sent_again_counts_once(desk: Desk) -> None:
    assert (await desk.posted(HELLO)).received == 5
    assert (await desk.posted(HELLO, THERE, ENDED)).received == 10
    assert desk.outputs() == [("hello", 5), ("there", 10)]
    assert len([one for one in desk.reports if isinstance(one, AttemptExited)]) == 1


async def test_the_same_batch_twice_at_once_waits_for_the_same_disk(desk: Desk) -> None:
    first, second = desk.post(HELLO), desk.post(HELLO)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not second.done()
    await desk.write()
    assert (await first, await second) == (AttemptAnswer(5), AttemptAnswer(5))
    assert desk.outputs() == [("hello", 5)]


async def test_whose_first_reply_was_given_up_waits_for_the_disk_all_the_same(desk: Desk) -> None:
    first = desk.post(HELLO)
    await desk.mailbox._arrived.wait()
    first.cancel()
    second = desk.post(HELLO)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not second.done()
    await desk.write()
    assert (await second).received == 5
    assert desk.outputs() == [("hello", 5)]


async def test_a_gap_is_answered_with_what_comes_next(desk: Desk) -> None:
    await desk.posted(HELLO)
    assert (await desk.post(THERE, after=9)) == AttemptAnswer(received=5)
    await desk.posted(MissingMessage(4), THERE, after=5)
    assert desk.outputs() == [("hello", 5), ("there", 14)]


async def test_of_two_processes_the_first_that_tells_something_goes_on(desk: Desk) -> None:
    def post(process: str) -> asyncio.Task[AttemptAnswer]:
        batch = AttemptMessages(process=process, messages=(BeganMessage(at=1.0),))
        return asyncio.create_task(desk.mailbox.post("job", 1, "w", batch))

    first, second = post("one"), post("two")
    await desk.write()
    assert (await first).received == 0
    with pytest.raises(Conflict):
        await second
    assert len(desk.reports) == 1


async def test_a_number_within_a_message_is_refused(desk: Desk) -> None:
    await desk.posted(HELLO)
    with pytest.raises(InvalidRequest):
        await desk.post(OutputMessage("stdout", "hell"), THERE)
    assert desk.outputs() == [("hello", 5)]


async def test_numbers_end_where_no_number_of_json_goes_on(desk: Desk) -> None:
    much = MissingMessage(2**53)
    assert (await desk.post(much)).received == 2**53
    with pytest.raises(InvalidRequest):
        await desk.post(HELLO, after=2**53)
    assert not desk.mailbox._inbox


async def test_what_was_over_before_its_process_went_is_reported_no_more() -> None:
    desk = Desk(placed="")
    desk.mailbox.expect("job", 1, "w")
    desk.mailbox.gone("job", 1, "w", Failure(code="process_died", message="It is gone."))
    assert not desk.mailbox._inbox
    assert desk.mailbox.running() == []
    await desk.close()


async def test_nothing_follows_an_end(desk: Desk) -> None:
    with pytest.raises(InvalidRequest):
        await desk.post(ENDED, HELLO)
    assert not desk.mailbox._inbox


async def test_after_a_restart_it_goes_on_behind_what_is_on_disk() -> None:
    desk = Desk(told=5)
    assert (await desk.post()).received == 5
    assert (await desk.posted(HELLO, THERE)).received == 10
    assert desk.outputs() == [("there", 10)]
    await desk.close()


async def test_a_cancel_is_in_the_next_answer_and_ends_a_wait(desk: Desk) -> None:
    asking = desk.post(wait_s=20)
    await asyncio.sleep(0)
    desk.mailbox.cancel("job", 1, 2.5)
    answer = await asking
    assert answer.cancel is not None
    assert answer.cancel.grace_s == 2.5
    assert msgspec.json.encode(answer) == b'{"received":0,"cancel":{"grace_s":2.5}}'
    assert (await desk.post(wait_s=20)).cancel == answer.cancel  # at once: it is told already


async def test_who_waits_for_news_is_woken_once(desk: Desk) -> None:
    asking = desk.post(wait_s=20)
    await asyncio.sleep(0)
    desk.mailbox.wake("job", 1)
    assert (await asking).cancel is None
    desk.mailbox.wake("nobody", 1)
    asking = desk.post(wait_s=20)
    await asyncio.sleep(0)
    assert not desk.mailbox._senders["job", 1].news.is_set()
    desk.mailbox.cancel("job", 1, 2.5)
    assert (await asking).cancel is not None


async def test_what_nobody_placed_is_not_cancelled() -> None:
    desk = Desk(placed="")
    desk.mailbox.cancel("job", 1, 2.5)
    assert desk.mailbox.running() == []
    await desk.close()


async def test_expected_once_and_running_until_its_end_is_on_disk(desk: Desk) -> None:
    assert desk.mailbox.expect("job", 1, "w")
    assert not desk.mailbox.expect("job", 1, "w")
    sent = desk.post(ENDED)
    await asyncio.sleep(0)
    assert desk.mailbox.running() == [("job", 1)]
    await desk.write()
    await sent
    assert desk.mailbox.running() == []


async def test_a_process_that_is_gone_ended_so_unless_it_told_another_end(desk: Desk) -> None:
    died = Failure(code="process_died", message="It is gone.")
    desk.mailbox.expect("job", 1, "w")
    await desk.posted(HELLO)
    desk.mailbox.gone("job", 1, "w", died)
    desk.mailbox.gone("job", 1, "w", died)
    (exited,) = await desk.write()
    assert isinstance(exited, AttemptExited)
    assert (exited.failure, exited.output) == (died, 5)
    sent = desk.post(ENDED)
    await asyncio.sleep(0)
    desk.mailbox.gone("job", 1, "w", died)
    (ended,) = await desk.write()
    assert isinstance(ended, AttemptExited)
    assert ended.failure is None
    await sent


async def test_with_its_worker_everything_is_forgotten(desk: Desk) -> None:
    desk.mailbox.expect("job", 1, "w")
    asking = desk.post(wait_s=20)
    await asyncio.sleep(0)
    desk.mailbox.report(WorkerLost("w", "power cut"))
    await desk.write()
    assert await asking == AttemptAnswer(received=0)
    assert desk.mailbox.running() == []


async def test_what_a_runner_would_not_say_is_cut(desk: Desk) -> None:
    long = Failure(code="c" * 1000, message="m" * 100_000)
    await desk.posted(EndedMessage(at=1e300, seconds=-5.0, digest="d", failure=long))
    (exited,) = desk.reports
    assert isinstance(exited, AttemptExited)
    assert exited.failure is not None
    assert len(exited.failure.code) == 100
    assert len(exited.failure.message) < 20_000
    assert exited.seconds == 0.0
    assert exited.at < 1e12
