"""What the engine of plain processes does beyond the contract."""

from __future__ import annotations

import asyncio
import errno
import json
import signal
from pathlib import Path

import psutil
import pytest

from corral.core.events import AttemptBegan, AttemptExited, AttemptReturned
from corral.engines.engine import EngineContext
from corral.engines.processes import ProcessesEngine
from corral.home import Home
from corral.reopening import reopen
from corral.settings import Settings, WorkerSettings
from tests.engines.conftest import processes_lab
from tests.eventually import eventually_async


async def test_a_process_that_does_not_end_when_asked_is_killed(tmp_path: Path) -> None:
    async with processes_lab(tmp_path, late_s=0.1) as lab:
        reading = asyncio.create_task(lab.read())
        attempt = await lab.attempt(long=True)
        lab.engine.start(attempt)
        await lab.until(AttemptBegan)
        (process,) = (
            one for one in psutil.Process().children() if str(tmp_path) in str(one.cmdline())
        )
        runners = process.children(recursive=True)
        process.send_signal(signal.SIGSTOP)
        await lab.engine.stop(attempt.job, 1, grace_s=0.0)
        (exited,) = await lab.until(AttemptExited)
        assert isinstance(exited, AttemptExited)
        assert exited.failure is not None
        assert exited.failure.code == "process_died"
        assert not psutil.wait_procs(runners, timeout=10)[1], "the job ends with it"
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_a_machine_that_shall_only_control_takes_nothing_new(tmp_path: Path) -> None:
    settings = Settings(worker=WorkerSettings(enabled=False))
    engine = ProcessesEngine(EngineContext(settings, Home(tmp_path), local_id="w"))
    (worker,) = engine.workers()
    assert worker.draining


async def test_what_a_full_disk_kept_from_starting_is_started_when_it_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with processes_lab(tmp_path) as lab:
        reading = asyncio.create_task(lab.read())
        attempt = await lab.attempt()
        with monkeypatch.context() as disk:
            disk.setattr(json, "dump", full)
            lab.engine.start(attempt)
            await lab.until(AttemptReturned)
        assert "No space left" in lab.engine.trouble
        await eventually_async(lambda: not lab.engine.mailbox.running(), "that is on disk")
        lab.engine.start(attempt)
        (exited,) = await lab.until(AttemptExited)
        assert isinstance(exited, AttemptExited)
        assert exited.failure is None
        assert lab.engine.trouble == ""
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def test_what_a_job_shut_of_the_engines_files_is_opened_again(tmp_path: Path) -> None:
    home = Home(tmp_path)
    shut = [home.processes / "j-1.json", home.log / "processes.log"]
    for path in shut:
        path.parent.mkdir()
        path.touch()
        path.chmod(0)
        path.parent.chmod(0)
    reopen(home.kept_open)
    assert [path.stat().st_mode & 0o700 for path in shut] == [0o600, 0o600]
    assert [path.parent.stat().st_mode & 0o700 for path in shut] == [0o700, 0o700]
