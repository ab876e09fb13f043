"""What a job tells is numbered, kept until it is acknowledged, and sent again until then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from corral.agent.outbox import OUTPUT_BYTES, SentOutput
from corral.core.frames import told_by
from corral.protocol import messages as wire
from tests.agent.conftest import StartAgent
from tests.agent.fake_controller import FakeController


def pour(lines: int, size: int = 20) -> int:
    from corral import job

    for number in range(lines):
        print(f"{number:0{size}d}")
        if number % 1000 == 0:
            job.metric(at=number)
    return lines


def put_together(heard: Sequence[wire.Message], job: str) -> tuple[str, int]:
    """The text by its numbers, whatever came twice; and how much never came."""
    text, at, missing = "", 0, 0
    for message in heard:
        if isinstance(message, wire.JobOutput | wire.JobProgress) and message.job == job:
            if message.n <= at:
                continue
            size = 1
            if isinstance(message, wire.JobOutput):
                size = told_by(message.text, message.data)
                text += message.text
            missing += message.n - size - at
            at = message.n
    return text, missing


async def test_numbers_tell_what_a_job_told(controller: FakeController, start: StartAgent) -> None:
    await start()
    job = controller.job(pour, 2000)
    await controller.send(job)
    ended = await controller.completed(job.job)
    told = [one for one in controller.heard if isinstance(one, wire.JobOutput | wire.JobProgress)]
    assert put_together(controller.heard, job.job) == (text(2000), 0)
    assert told[-1].n == ended.output == len(text(2000)) + 2


async def test_a_socket_that_is_reset_loses_nothing(
    controller: FakeController, start: StartAgent
) -> None:
    """What was on its way then is sent again; nothing that was acknowledged is."""
    controller.acknowledges = True
    controller.slowness_s = 0.01  # so that something is on its way
    await start()
    lines = 100_000
    job = controller.job(pour, lines)
    await controller.send(job)
    for resets in range(5):
        heard = len(controller.heard)
        await controller.expect(wire.JobOutput, job.job, count=1 + 5 * resets)
        controller.sockets[-1].transport.abort()
        await controller.expect(wire.WorkerRegister, count=resets + 2)
        await controller.news(heard)
    ended = await controller.completed(job.job)
    assert put_together(controller.heard, job.job) == (text(lines), 0)
    assert ended.output == len(text(lines)) + lines // 1000
    at = [index for index, one in enumerate(controller.heard) if one is ended]
    output = [
        index for index, one in enumerate(controller.heard) if isinstance(one, wire.JobOutput)
    ]
    assert output[-1] < at[0], "the end comes behind all that was told"


async def test_an_older_controller_is_told_nothing_twice(
    controller: FakeController, start: StartAgent, tmp_path: Path
) -> None:
    await start()
    job = controller.job(pour, 100)
    await controller.send(job)
    await controller.completed(job.job)
    controller.sockets[-1].transport.abort()
    await controller.expect(wire.WorkerRegister, count=2)
    await controller.expect(wire.WorkerHeartbeat, where=lambda _: len(controller.sockets) == 2)
    assert controller.output(job.job) == text(100)


async def test_past_the_bound_the_oldest_goes_and_its_numbers_say_so(
    controller: FakeController, start: StartAgent
) -> None:
    """A controller that reads and never acknowledges: the agent keeps so much and no more."""
    controller.acknowledges, controller.takes_output = True, False
    controller.receives = False
    await start()
    lines, size = 40_000, 1000
    job = controller.job(pour, lines, size)
    await controller.send(job)
    await controller.completed(job.job)
    first = len(controller.heard)
    controller.receives = True
    controller.sockets[-1].transport.abort()
    ended = await controller.expect(wire.JobCompleted, job.job, count=2)
    again, missing = put_together(controller.heard[first:], job.job)
    assert 0.8 * OUTPUT_BYTES < len(again) <= OUTPUT_BYTES
    assert text(lines, size).endswith(again)
    assert 0 <= len(again) + missing - len(text(lines, size)) <= lines // 1000
    assert ended.output == len(text(lines, size)) + lines // 1000


def text(lines: int, size: int = 20) -> str:
    return "".join(f"{number:0{size}d}\n" for number in range(lines))


def message(job: str, n: int) -> wire.JobOutput:
    return wire.JobOutput(job, 1, "stdout", "x", n=n)


def test_the_bound_is_for_all_and_the_largest_pays() -> None:
    kept = SentOutput(limit=1000)
    for n in range(1, 4):
        kept.add(message("quiet", n), 10)
    for n in range(1, 1000):
        kept.add(message("loud", n), 10)
        assert kept.size <= 1000
    again = kept.again(acknowledges=True)
    assert [one.n for one in again if one.job == "quiet"] == [1, 2, 3]
    loud = [one.n for one in again if one.job == "loud"]
    assert loud == list(range(loud[0], 1000))
    kept.received(("loud", 1), 998)
    kept.received(("quiet", 1), 0)
    kept.forget(("quiet", 1))
    assert [one.n for one in kept.again(acknowledges=True)] == [999]
    kept.received(("loud", 1), 999)
    assert (kept.size, kept.again(acknowledges=True)) == (0, [])


async def test_what_nobody_acknowledges_is_not_kept() -> None:
    kept = SentOutput()
    kept.add(message("job", 1), 10)
    assert kept.again(acknowledges=False) == []
    kept.add(message("job", 2), 10)
    assert kept.size == 0
    kept.again(acknowledges=True)
    kept.add(message("job", 3), 10)
    assert len(kept.again(acknowledges=True)) == 1
