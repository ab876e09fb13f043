"""Attempts as plain processes of the controller's machine: no agent, and they outlive the
controller. Each holds the lock of its own file as long as it lives, so none is lost or doubled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec
import psutil
import structlog

from corral.agent.inventory import capabilities
from corral.core.events import AttemptReturned, EngineReport, WorkerJoined
from corral.core.job import Failure, JobId, Workload
from corral.core.worker import Capabilities, Capacity, Holding, Worker
from corral.engines.engine import Attempt, EngineContext
from corral.engines.posted import Mailbox
from corral.engines.reports import Key
from corral.home import make_folder, read_json
from corral.locks import is_locked, lock_file
from corral.settings import WorkerSettings
from corral.variables import build_environment

log = structlog.get_logger()

LOOK_S = 0.1
"""How often it looks whether its processes live, as long as it has some."""


def build(context: EngineContext) -> ProcessesEngine:
    return ProcessesEngine(context)


@dataclass(slots=True)
class _Started:
    file: Path
    holding: Holding
    process: subprocess.Popen[bytes] | None = None
    """None: an earlier life of the controller started it."""
    end_by: float = math.inf
    """When it is killed, because it was asked to end and does not."""

    def is_gone(self) -> bool:
        if self.process is not None:
            return self.process.poll() is not None
        return not is_locked(self.file)

    def kill(self) -> None:
        """The job ends with it."""
        if self.process is not None:
            self.process.kill()
            return
        for process in psutil.process_iter(["cmdline"]):
            if (process.info["cmdline"] or [""])[-1] == str(self.file):  # in no other's
                with contextlib.suppress(psutil.Error):
                    process.kill()
                    process.wait(1.0)

    def how(self) -> Failure:
        code = None if self.process is None else self.process.returncode
        told = "" if code is None else f" with exit code {code}"
        return Failure("process_died", f"Its process ended{told} and told no end.", exit_code=code)


class ProcessesEngine:
    name = "processes"

    def __init__(self, context: EngineContext, *, late_s: float = 30.0) -> None:
        self.mailbox = Mailbox(context)
        self.trouble = ""
        self.changed: Callable[[], None] = lambda: None
        self._context, self._late_s = context, late_s
        self._folder = context.home.processes
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
            if not is_locked(file) or not self._find(file):
                file.unlink()
        worker, attempts = self._worker, tuple(self._started)
        self._worker = msgspec.structs.replace(worker, connected=True, seen_at=time.time())
        self.mailbox.report(
            WorkerJoined(worker.id, worker.name, worker.capabilities, attempts, remembers=True)
        )
        self._looking = asyncio.create_task(self._look_after())

    def _find(self, file: Path) -> bool:
        """One that an earlier life of the controller started; False: it is of no use any more."""
        told = read_json(file)
        try:
            key = str(told["job"]), int(told["attempt"])
            holding = msgspec.convert(told["holding"], Holding)
            if told["url"] != self._context.ticket(*key).url:
                raise ValueError("it would try for a day to report where no controller is any more")
        except (LookupError, TypeError, ValueError) as error:  # or somebody wrote to its file
            log.warning("process_out_of_reach", file=str(file), error=str(error))
            _Started(file, Holding(0.0, 0.0)).kill()
            return False
        self.mailbox.expect(*key, self._worker.id)
        self._note(key, _Started(file, holding))
        return True

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
            failure = Failure("workload_refused", told)
            self.mailbox.gone(attempt.job, attempt.number, attempt.worker, failure)
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
                if started := self._started.get((job, attempt)):
                    end_by = time.monotonic() + grace_s + self._late_s
                    started.end_by = min(end_by, started.end_by)
        elif unbegun:
            self.mailbox.report(AttemptReturned(job, attempt, waiting.worker, "It was recalled."))
        else:
            failure = Failure("cancelled", "It was cancelled before it began.")
            self.mailbox.gone(job, attempt, waiting.worker, failure)
        self._start_what_fits()

    async def running(self) -> Collection[Key]:
        return self.mailbox.running()

    def events(self) -> AsyncIterator[Sequence[EngineReport]]:
        return self.mailbox.events()

    def _start_what_fits(self) -> None:
        for key, attempt in list(self._waiting.items()):
            holding = self._free.fits(attempt.needs)
            if holding is None:
                return
            del self._waiting[key]
            try:
                self._note(key, self._spawn(attempt, holding))
            except OSError as error:
                self.trouble = why = f"The engine `processes` cannot start a process: {error}."
                log.error("process_not_started", job=attempt.job, error=str(error))
                self.mailbox.report(AttemptReturned(*key, attempt.worker, why, unasked=True))
            else:
                self.trouble = ""

    def _spawn(self, attempt: Attempt, holding: Holding) -> _Started:
        """Its file is its ticket, and what it holds here. The process inherits the lock: if the
        controller is killed at any point of this, the file is locked just if the process lives."""
        ticket = replace(self._context.ticket(attempt.job, attempt.number), devices=())
        file = self._folder / f"{ticket.job}-{ticket.attempt}.json"
        command = [sys.executable, "-P", "-m", "corral.runtime.standalone", str(file)]
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        told = {**asdict(ticket), "holding": msgspec.to_builtins(holding)}
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as written:
                lock_file(fd)
                json.dump(told, written)
                written.flush()
                return _Started(file, holding, self._process(command, fd))
        except OSError:  # a full disk, for one: the same attempt comes again
            file.unlink(missing_ok=True)
            raise

    def _process(self, command: list[str], fd: int) -> subprocess.Popen[bytes]:
        said = self._context.home.log / "processes.log"  # little: jobs speak through the door
        with said.open("ab") as errors:
            return subprocess.Popen(
                command,
                cwd=self._folder,
                env=build_environment(),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
                pass_fds=(fd,),
            )

    def _note(self, key: Key, started: _Started) -> None:
        self._started[key] = started
        self._free.take(started.holding)
        self._any.set()

    async def _look_after(self) -> None:
        while True:
            await self._any.wait()
            await asyncio.sleep(LOOK_S)
            for key, started in list(self._started.items()):
                with contextlib.suppress(OSError):  # no descriptors, for one: asked again
                    if started.is_gone():
                        self._forget(key, started)
                    elif time.monotonic() > started.end_by:
                        started.kill()
            if not self._started:
                self._any.clear()

    def _forget(self, key: Key, started: _Started) -> None:
        """If the controller is killed before this is on disk, the next one finds no process for the
        attempt, and concludes the same."""
        self.mailbox.gone(*key, self._worker.id, started.how())
        started.file.unlink(missing_ok=True)
        self._free.give(started.holding)
        del self._started[key]
        self._start_what_fits()


def _offered(settings: WorkerSettings) -> Capabilities:
    """As an agent on this machine would say, so that both are one worker; but no GPUs, and image
    jobs are for agents, which ask their backends what they have."""
    code = (Workload.PYTHON.value,) if settings.allow_code else ()
    return msgspec.structs.replace(capabilities(settings), gpus=(), workloads=code, ahead=0)
