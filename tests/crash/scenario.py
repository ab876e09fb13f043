"""The small scenario that crash tests interrupt everywhere, and what must be true afterwards.

A whole controller without doors around the simulated engine, on a home of its own, says one line
for each thing it acknowledged. Whatever was said before a crash must hold after the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import structlog
from msgspec.structs import replace

from corral.controller.auth.tokens import AttemptTokens, kept_secret
from corral.controller.auth.vault import Vault
from corral.controller.early_starts import EarlyStarts
from corral.controller.engines.fleet import Fleet
from corral.controller.files.assets import Assets
from corral.controller.files.blobs import Blobs
from corral.controller.intake import Intake
from corral.controller.journal.database import Journal
from corral.controller.journal.record import Change
from corral.controller.journal.snapshot import EVERY
from corral.controller.loop import Loop, Pause
from corral.controller.output.spool import Spool
from corral.controller.queue import Queue
from corral.controller.recovery.proof_process import prove
from corral.controller.recovery.start import recovered
from corral.controller.store import Store
from corral.controller.world import World
from corral.core.events import (
    AttemptBegan,
    AttemptExited,
    AttemptOutput,
    AttemptPlaced,
    EngineReport,
    JobCancelled,
    JobSubmitted,
    JobSucceeded,
)
from corral.core.frames import OutputFrame
from corral.core.job import Blob, Failure, FunctionCall, Job, JobId, Needs, decode_document
from corral.core.worker import Capabilities, Worker
from corral.engines.engine import Attempt
from corral.engines.simulated import SimulatedEngine
from corral.home import Home, write_private_json
from corral.scheduler.settle import Policy
from tests.controller.shell import nobody
from tests.crash.books import ENDS, end_of, stories

Say = Callable[[str, JobId], None]
"""`say(what, job)`: an acknowledgement leaves the controller."""

LARGE = 20 * 1024
OFTEN = 7
"""Records between two snapshots of the journal: a life has several."""
WORKER = Worker(
    id="w1",
    name="w1",
    engine="simulated",
    capabilities=Capabilities(cpus=2.0, memory_gb=16.0, workloads=("python",), ahead=2),
)


def quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


class ComputingEngine(SimulatedEngine):
    """Attempts print a line and answer with their arguments backwards; the first attempt of a job
    named `twice` dies. Large answers are stored before they are told, as a runner does."""

    def __init__(self, workers: Sequence[Worker], blobs: Blobs) -> None:
        super().__init__(workers)
        self._blobs = blobs
        self._jobs: dict[JobId, Job] = {}

    def start(self, attempt: Attempt) -> None:
        self._jobs[attempt.job] = decode_document(attempt.document)
        super().start(attempt)

    async def events(self) -> AsyncIterator[Sequence[EngineReport]]:
        async for batch in super().events():
            told: list[EngineReport] = []
            for report in batch:
                if isinstance(report, AttemptExited) and report.failure is None:
                    report = await self._answered(report)
                told.append(report)
                if isinstance(report, AttemptBegan):
                    frame = OutputFrame(report.at, "stdout", "moo\n")
                    told.append(AttemptOutput(report.job, report.attempt, report.worker, frame))
            yield told

    async def _answered(self, report: AttemptExited) -> AttemptExited:
        job = self._jobs[report.job]
        if job.name == "twice" and report.attempt == 1:
            return replace(report, result=None, failure=Failure("process_died", "It fell."))
        answer = await read(self._blobs, _arguments(job))
        blob = Blob.of(answer[::-1])
        if blob.data is None:
            blob = await self._blobs.put_bytes(answer[::-1])
        return replace(report, result=blob)


async def read(blobs: Blobs, blob: Blob) -> bytes:
    if blob.data is not None:
        return blob.data
    data = b"".join([chunk async for chunk in blobs.read(blob.sha256)])
    assert hashlib.sha256(data).hexdigest() == blob.sha256, "a stored blob is not what it was"
    return data


def _arguments(job: Job) -> Blob:
    assert isinstance(job.work, FunctionCall)
    return job.work.arguments


def function_job(name: str, arguments: bytes = b"", **fields: object) -> Job:
    data = arguments or name.encode()
    call = FunctionCall(
        function=Blob.of(b"f"),
        arguments=Blob(sha256=hashlib.sha256(data).hexdigest(), size=len(data), data=data),
    )
    return Job(work=call, name=name, key=f"key-{name}", **fields)  # type: ignore[arg-type]


class Station:
    """A controller without doors, made as `server` makes it."""

    def __init__(self, path: Path, say: Say, snapshot_every: int) -> None:
        self.home = Home(path)
        self.home.take()
        self.journal = Journal(self.home.journal)
        self.store = Store(self.journal, World(), snapshot_every=snapshot_every)
        try:
            self.store.recover()
        except BaseException:
            self.journal.close()
            self.home.release()
            raise
        self.spool = Spool(self.home.spool, 1 << 20)
        self.blobs = Blobs(self.home.blobs)
        self.token = kept_secret(self.home.token)
        tokens = AttemptTokens(kept_secret(self.home.transfer_key))
        self.engine = ComputingEngine([WORKER], self.blobs)
        engines = {self.engine.name: self.engine}
        vault, pause = Vault(self.home.secrets), Pause(self.home.queue)
        self.loop = Loop(self.store, Fleet(engines), tokens, vault, aging_s=60.0, pause=pause)
        self.queue = Queue(
            self.store,
            self.blobs,
            self.loop,
            first_workers=nobody,
            vault=vault,
            assets=Assets(self.blobs, limit=1_000_000),
            document_limit=8_000_000,
            cancel_grace_s=1.0,
            accept=EarlyStarts(self.store, self.loop).accept,
        )
        self.intake = Intake(
            self.engine,
            self.store,
            self.spool,
            policy=Policy(backoff_s=0.0),
            loop=self.loop,
            heard=lambda job: None,
            stop_grace_s=1.0,
        )
        self._say = say
        self._idle = asyncio.Event()
        self.store.listen(self._committed)
        write_private_json(self.home.controller, {"pid": os.getpid()})
        self.engine.open()
        self._tasks = [
            asyncio.create_task(self.intake.run()),
            asyncio.create_task(self.loop.run()),
        ]

    def _committed(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change.fact, ENDS):
                self._say("DONE", change.fact.job)
        self._idle.set()

    async def submit(self, *jobs: Job) -> list[JobId]:
        accepted = [answer.job for answer in await self.queue.submit(jobs)]
        for job in accepted:
            self._say("ACK", job)
        return accepted

    async def cancel(self, job: JobId) -> None:
        await self.queue.cancel(job)
        self._say("CANCELLED", job)

    async def until_ended(self, *, but: Sequence[JobId] = ()) -> None:
        """Until nothing lives except the jobs named."""
        async with asyncio.timeout(20):
            while not set(self.store.world.heads) <= set(but):
                self._idle.clear()
                waiting = asyncio.create_task(self._idle.wait())
                await asyncio.wait([waiting, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
                for task in self._tasks:
                    if task.done():
                        task.result()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.spool.close()
        await self.store.close()
        self.home.release()


@contextlib.asynccontextmanager
async def station(
    path: Path, say: Say = lambda what, job: None, *, snapshot_every: int = EVERY
) -> AsyncIterator[Station]:
    opened = Station(path, say, snapshot_every)
    try:
        yield opened
    finally:
        await opened.close()


async def play(path: Path, say: Say, *, bulky: bool = False) -> None:
    """Two lives of one home. `bulky` writes enough for a checkpoint in the middle of a life."""
    async with station(path, say, snapshot_every=OFTEN) as life:
        await life.submit(function_job("single"))
        # No worker here has a GPU: this one waits until somebody gives up on it.
        [waiting] = await life.submit(function_job("waiting", needs=Needs(gpus=1)))
        await life.submit(*(function_job(f"batch-{n}", batch="herd") for n in range(3)))
        await life.submit(function_job("large", os.urandom(LARGE // 2).hex().encode()))
        await life.submit(function_job("twice"))
        if bulky:
            await life.submit(function_job("bulky", env={"HAY": "y" * 4_400_000}))
        await life.cancel(waiting)
        await life.until_ended()
    async with station(path, say, snapshot_every=OFTEN) as life:
        life.store.snapshots.unproven = 0
        await life.submit(function_job("late"))
        await life.until_ended()


def run(path: Path, *, bulky: bool = False) -> None:
    """The scenario as a program: acknowledgements go to stdout, one write each."""
    quiet()
    asyncio.run(play(path, lambda what, job: _print(f"{what} {job}\n"), bulky=bulky))


def _print(line: str) -> None:
    os.write(1, line.encode())


async def check(path: Path, said: Sequence[str]) -> int:
    """Starts again on what a crash left, lets everything end, and holds it against what had been
    said. Returns how many jobs there are."""
    acknowledged = {line.split()[1] for line in said if line.startswith("ACK")}
    done = {line.split()[1] for line in said if line.startswith(("DONE", "CANCELLED"))}
    cancelled = {line.split()[1] for line in said if line.startswith("CANCELLED")}
    async with station(path, snapshot_every=OFTEN) as life:
        if life.store.snapshots.unproven:
            _prove(life)
        before = life.journal.last_seq()
        known = {name: job for job, name in _names(life).items()}
        if "waiting" in known and known["waiting"] in life.store.world.heads:
            await life.cancel(known["waiting"])
        # A client that never heard an answer asks again: it gets the same job, or a new one.
        for name in ("single", "late"):
            [job] = await life.submit(function_job(name))
            assert known.get(name, job) == job, f"{name} was taken twice"
            acknowledged.add(job)
        await life.until_ended()
    async with station(path) as life:
        assert not life.store.world.heads, "an ended job lives again"
        found = stories(path)
        for job in acknowledged:
            assert job in found, f"job {job} was acknowledged and is lost"
        for job, story in found.items():
            end = end_of(story)
            assert end is not None, f"job {job} did not end"
            assert life.store.head(job).state.ended
            if job in cancelled:
                assert isinstance(end, JobCancelled), f"job {job} was cancelled, not {end}"
            if job in done:
                placed = [n for n, fact in story if n > before and isinstance(fact, AttemptPlaced)]
                assert not placed, f"job {job} had ended and was placed again"
            if isinstance(end, JobSucceeded):
                await _right(life, story[0][0], end)
    return len(found)


def _prove(life: Station) -> None:
    """What the background does after a start from a snapshot; and that the start knows the same as
    one from the whole journal."""
    for _ in prove(life.journal, life.store.snapshots.unproven):
        pass
    assert recovered(life.journal).heads == life.store.world.heads
    life.store.snapshots.unproven = 0


def _names(life: Station) -> dict[JobId, str]:
    facts = (record.fact() for record in life.journal.scan() if record.job)
    return {fact.job: fact.name for fact in facts if isinstance(fact, JobSubmitted)}


async def _right(life: Station, submitted: int, end: JobSucceeded) -> None:
    job = decode_document(life.journal.document(submitted))
    assert end.result is not None
    answer = await read(life.blobs, end.result)
    assert answer == (await read(life.blobs, _arguments(job)))[::-1], f"job {end.job}: wrong result"
    if job.name == "twice":
        assert end.attempt > 1, "its first attempt dies"
