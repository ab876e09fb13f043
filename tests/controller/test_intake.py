"""How much the intake takes at once, and from whom."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from corral.controller.intake import MAX_INLINE_FILES, REPORT_BATCH, SMALL_BATCH, Intake
from corral.controller.output.stream import path_of, stem_in
from corral.core.events import (
    AttemptExited,
    AttemptOutput,
    AttemptReturned,
    AttemptStarted,
    EngineReport,
    JobSucceeded,
)
from corral.core.frames import OutputFrame
from corral.core.job import Blob, State
from corral.scheduler.settle import Policy
from tests.controller.shell import shell, worker

LINE = OutputFrame(1.0, "stdout", "a line")


class Talkative:
    """An engine with very much to say at once."""

    name = "talkative"

    async def events(self) -> AsyncIterator[Sequence[EngineReport]]:
        count = 2 * REPORT_BATCH + 1
        yield [AttemptReturned(f"j{number}", 1, "w", "") for number in range(count)]
        await asyncio.Event().wait()


@pytest.mark.parametrize("submitted", [0, 1])
async def test_others_get_a_turn_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, submitted: int
) -> None:
    """And more often while somebody submits a job now and then, and waits for each answer."""
    batch = SMALL_BATCH if submitted else REPORT_BATCH
    count = 2 * REPORT_BATCH + 1
    taken: list[int] = []
    all_taken = asyncio.Event()

    async def take(reports: Sequence[EngineReport]) -> None:
        taken.append(len(reports))
        if sum(taken) == count:
            all_taken.set()

    async with shell(tmp_path) as there:
        monkeypatch.setattr("corral.controller.store.SUBMITTING_S", 60.0)
        for number in range(submitted):
            await there.submit(text=str(number))
        intake = Intake(
            Talkative(),  # type: ignore[arg-type]
            there.store,
            there.spool,
            policy=Policy(),
            loop=there.loop,
            heard=lambda job: None,
            stop_grace_s=1.0,
        )
        monkeypatch.setattr(intake, "take", take)
        running = asyncio.create_task(intake.run())
        await all_taken.wait()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    whole, rest = divmod(count, batch)
    assert taken == [batch] * whole + [rest]


async def test_a_file_system_that_lets_new_files_wait_lets_nobody_else_wait(tmp_path: Path) -> None:
    """The first file of many is a pipe, which nobody can open before somebody is at its other
    end."""
    released = threading.Event()

    def release() -> None:
        if not released.is_set():
            released.set()
            os.open(pipe, os.O_RDWR | os.O_NONBLOCK)

    async with shell(tmp_path, [worker(cpus=64)], lambda _: 1e6) as corral:
        jobs = [await corral.submit(text=str(n)) for n in range(MAX_INLINE_FILES + 1)]
        for job in jobs:
            await corral.until(job, AttemptStarted)
        pipe = path_of(stem_in(corral.spool.folder, f"{jobs[0]}.1"), 0)
        pipe.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(pipe)
        late = threading.Timer(10.0, release)
        late.start()
        reports = [AttemptOutput(job, 1, "w1", LINE) for job in jobs]
        taking = asyncio.create_task(corral.intake.take(reports))
        for _ in range(10):
            await asyncio.sleep(0)
        had_a_turn = not released.is_set()
        release()
        await taking
        late.cancel()
        assert had_a_turn
        assert [len(corral.spool.read(job, 1, 0).lines) for job in jobs[1:]] == [1] * 4


async def test_what_another_worker_says_hides_nothing_of_the_right_one(tmp_path: Path) -> None:
    """In one batch, and before it: the first word is not the last where it is a stranger's."""
    async with shell(tmp_path, seconds=lambda _: 1e6) as corral:
        job = await corral.submit()
        await corral.until(job, AttemptStarted)
        now, digest = time.time(), corral.store.digest(corral.store.head(job))
        foreign = AttemptExited(job, 1, "w2", now, 1.0, digest, Blob.of(b"wrong"))
        right = AttemptExited(job, 1, "w1", now, 1.0, digest, Blob.of(b"right"))
        await corral.intake.take([foreign, right, foreign])
        head = corral.store.head(job)
        assert head.state is State.SUCCEEDED
        (ended,) = [fact for _, fact in corral.store.newest(head) if isinstance(fact, JobSucceeded)]
        assert ended.result == Blob.of(b"right")
