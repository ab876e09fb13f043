"""What the engine of plain processes does beyond the contract."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import psutil

from corral.core.events import AttemptBegan, AttemptExited
from corral.engines.engine import EngineContext
from corral.engines.processes import ProcessesEngine
from corral.home import Home
from corral.settings import Settings, WorkerSettings
from tests.engines.conftest import processes_lab


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
