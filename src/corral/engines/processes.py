"""Attempts as plain processes of the controller's machine: no agent, and they outlive the
controller. Each holds the lock of its own file as long as it lives, so none is lost or doubled.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

import msgspec
import structlog

from corral.agent.inventory import capabilities
from corral.core.events import AttemptExited, AttemptReturned, EngineReport, WorkerJoined
from corral.core.job import Failure, JobId, Workload
from corral.core.worker import Capabilities, Capacity, Holding, Worker
from corral.engines.engine import Attempt, EngineContext
from corral.engines.posted import Mailbox
from corral.home import is_locked, lock_file, make_folder, read_json
from corral.settings import WorkerSettings
from corral.variables import build_environment

log = structlog.get_logger()

FOLDER = "processes"
LOOK_S = 0.1
"""How often it looks whether its processes live, as long as it has some."""

Key = tuple[JobId, int]


def build(context: EngineContext) -> ProcessesEngine:
    return ProcessesEngine(context)


@dataclass(slots=True)
class _Started:
    file: Path
    holding: Holding
    process: subprocess.Popen[bytes] | None = None
    """None: an earlier life of the controller started it."""

    def is_gone(self) -> bool:
        if self.process is not None:
            return self.process.poll() is not None
        return not is_locked(self.file)

    def how(self) -> Failure:
        code = None if self.process is None else self.process.returncode
        told = "" if code is None else f" with exit code {code}"
        return Failure("process_died", f"Its process ended{told} and told no end.", exit_code=code)


class ProcessesEngine:
    name = "processes"

    def __init__(self, context: EngineContext) -> None:
        self.mailbox = Mailbox(context)
        self.trouble = ""
        self.changed: Callable[[], None] = lambda: None
        self._context = context
        self._folder = context.home.path / FOLDER
        settings = context.settings.worker
        self._worker = Worker(
            id=context.local_id,
            name=settings.name or socket.gethostname().split(".")[0],
            engine=self.name,
            capabilities=_offered(settings),
            local=True,
            connected=False,
            draining=not settings.enabled,
        )
        self._free = Capacity(self._worker.capabilities)
        self._waiting: dict[Key, Attempt] = {}
        """Taken, and in need of room; the first in line goes first."""
        self._started: dict[Key, _Started] = {}
        self._any = asyncio.Event()
        """Set while there is a process to look after."""
        self._looking: asyncio.Task[None] | None = None

    def open(self, holding: Collection[str]) -> None:
        """Whoever holds the lock of its file runs. What does not is left out of the report: it
        began, by the journal, and is lost; or it did not, and is started as the same attempt."""
        make_folder(self._folder)
        for file in sorted(self._folder.glob("*.json")):
            if is_locked(file):
                self._find(file)
            else:
                file.unlink()
        now = time.time()
        self._worker = msgspec.structs.replace(self._worker, connected=True, seen_at=now)
        worker, attempts = self._worker, tuple(self._started)
        self.mailbox.report(
            WorkerJoined(worker.id, worker.name, worker.capabilities, attempts, remembers=True)
        )
        self._looking = asyncio.create_task(self._look_after())

    def _find(self, file: Path) -> None:
        """One that an earlier life of the controller started."""
        told = read_json(file)
        try:
            key = str(told["job"]), int(told["attempt"])
            holding = msgspec.convert(told["holding"], Holding)
        except (LookupError, TypeError, ValueError) as error:  # somebody wrote to it
            log.error("process_unknown", file=str(file), error=str(error))
            return
        self.mailbox.expect(*key, self._worker.id)
        self._note(key, _Started(file, holding))

    async def drain(self, grace_s: float) -> None:
        """Nothing here ends with the controller."""

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self.mailbox.settled()

    def workers(self) -> Sequence[Worker]:
        return [self._worker]

    def start(self, attempt: Attempt) -> None:
        if not self.mailbox.expect(attempt.job, attempt.number, attempt.worker):
            return
        if Capacity(self._worker.capabilities).fits(attempt.needs) is None:
            told = "The engine `processes` has not that much here, and no GPUs."
            self._end(attempt, Failure("workload_refused", told))
            return
        self._waiting[attempt.job, attempt.number] = attempt
        self._start_what_fits()

    async def stop(
        self, job: JobId, attempt: int, *, grace_s: float, unbegun: bool = False
    ) -> None:
        waiting = self._waiting.pop((job, attempt), None)
        if waiting is None:
            if not unbegun:
                self.mailbox.cancel(job, attempt, grace_s)
        elif unbegun:
            self.mailbox.report(AttemptReturned(job, attempt, waiting.worker, "It was recalled."))
        else:
            self._end(waiting, Failure("cancelled", "It was cancelled before it began."))
        self._start_what_fits()

    async def running(self) -> Collection[Key]:
        return self.mailbox.running()

    def events(self) -> AsyncIterator[Sequence[EngineReport]]:
        return self.mailbox.events()

    def _end(self, attempt: Attempt, failure: Failure) -> None:
        """It has no process."""
        named = attempt.job, attempt.number, attempt.worker
        self.mailbox.report(AttemptExited(*named, time.time(), 0.0, failure=failure))

    def _start_what_fits(self) -> None:
        for key, attempt in list(self._waiting.items()):
            holding = self._free.fits(attempt.needs)
            if holding is None:
                return
            del self._waiting[key]
            try:
                self._note(key, self._spawn(attempt, holding))
            except OSError as error:
                self.trouble = f"The engine `processes` cannot start a process: {error}."
                log.error("process_not_started", job=attempt.job, error=str(error))
                returned = AttemptReturned(*key, attempt.worker, self.trouble, unasked=True)
                self.mailbox.report(returned)
            else:
                self.trouble = ""

    def _spawn(self, attempt: Attempt, holding: Holding) -> _Started:
        """Its file is its ticket, and what it holds here. The process inherits the lock: if the
        controller is killed at any point of this, the file is locked just if the process lives."""
        job, number = attempt.job, attempt.number
        ticket = replace(self._context.ticket(job, number), devices=())
        file = self._folder / f"{job}-{number}.json"
        command = [sys.executable, "-P", "-m", "corral.runtime.standalone", str(file)]
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as written, self._log() as errors:
            if not lock_file(fd):
                raise OSError(f"{file} is held by another process")
            json.dump({**asdict(ticket), "holding": msgspec.to_builtins(holding)}, written)
            written.flush()
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=build_environment(),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
                pass_fds=(fd,),
            )
        return _Started(file, holding, process)

    def _log(self) -> IO[bytes]:
        """What the processes themselves say, which is little: jobs speak through the door."""
        file = self._context.home.log / "processes.log"
        return os.fdopen(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")

    def _note(self, key: Key, started: _Started) -> None:
        self._started[key] = started
        self._free.take(started.holding)
        self._any.set()

    async def _look_after(self) -> None:
        while True:
            await self._any.wait()
            await asyncio.sleep(LOOK_S)
            for key, started in list(self._started.items()):
                if started.is_gone():
                    self._forget(key, started)
            if not self._started:
                self._any.clear()

    def _forget(self, key: Key, started: _Started) -> None:
        """Killed before the end is on disk, the next controller misses the file, and concludes the
        same."""
        self.mailbox.gone(*key, self._worker.id, started.how())
        started.file.unlink(missing_ok=True)
        self._free.give(started.holding)
        del self._started[key]
        self._start_what_fits()


def _offered(settings: WorkerSettings) -> Capabilities:
    """As an agent on this machine would say, so that both are one worker; but no GPUs, and image
    jobs are for agents, which ask their backends what they have."""
    workloads = (Workload.PYTHON.value,) if settings.allow_code else ()
    can = capabilities(settings)
    return msgspec.structs.replace(can, gpus=(), workloads=workloads, ahead=0)
