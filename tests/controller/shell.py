"""A whole controller around the simulated engine, in one process, without doors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from corral.controller.auth.tokens import AttemptTokens
from corral.controller.auth.vault import Vault
from corral.controller.early_starts import EarlyStarts
from corral.controller.engines.fleet import Fleet
from corral.controller.engines.recalling import Recalling
from corral.controller.files.assets import Assets
from corral.controller.files.blobs import Blobs
from corral.controller.intake import Intake
from corral.controller.journal.database import Journal
from corral.controller.journal.record import JournalRecord
from corral.controller.loop import Loop, Pause
from corral.controller.output.feed import Feed
from corral.controller.output.pages import Cursor, Seen
from corral.controller.output.spool import Spool
from corral.controller.queue import Queue
from corral.controller.store import Store
from corral.controller.webhooks.notify import Notifier, Timing
from corral.controller.world import World
from corral.core.job import Blob, FunctionCall, Head, Job, JobId, Needs, QueueClass
from corral.core.worker import GPU, Capabilities, Worker
from corral.engines.engine import Attempt
from corral.engines.simulated import SimulatedEngine
from corral.scheduler.circuit import Breaker
from corral.scheduler.settle import Policy
from corral.settings import Webhook


def worker(name: str = "w1", *, cpus: float = 2.0, gpus: int = 1, **more: object) -> Worker:
    cards = tuple(GPU(f"GPU-{name}-{n}", "RTX 3090", 24.0) for n in range(gpus))
    more = {"workloads": ("python",), **more}
    can = Capabilities(cpus=cpus, memory_gb=16.0, gpus=cards, **more)  # type: ignore[arg-type]
    return Worker(id=name, name=name, engine="simulated", capabilities=can)


def function_job(text: str = "x", **fields: object) -> Job:
    call = FunctionCall(function=Blob.of(b"f"), arguments=Blob.of(text.encode()))
    return Job(work=call, **fields)  # type: ignore[arg-type]


class Shell:
    def __init__(
        self,
        home: Path,
        workers: Sequence[Worker],
        seconds: Callable[[Attempt], float],
        *,
        policy: Policy,
        aging_s: float,
        webhooks: Sequence[Webhook] = (),
        timing: Timing = Timing(),  # noqa: B008 - it is frozen
        journal: Journal | None = None,
        keep_for_interactive: int = 0,
        breaker: Breaker = Breaker(),  # noqa: B008
        beside: Sequence[SimulatedEngine] = (),
        early_starts: bool = True,
    ) -> None:
        for name in ("journal", "blobs", "spool"):
            (home / name).mkdir(parents=True, exist_ok=True)
        self.journal = journal or Journal(home / "journal")
        self.store = Store(self.journal, World())
        self.store.recover()
        self.spool = Spool(home / "spool", 1 << 20)
        self.engine = SimulatedEngine(workers, seconds)
        self.feed = Feed(self.store, self.spool)
        self.tokens = AttemptTokens("key")
        self.engines = (self.engine, *beside)
        engines = {engine.name: engine for engine in self.engines}
        self.vault = Vault(home / "secrets")
        pause = Pause(home / "queue.json")
        self.loop = Loop(
            self.store,
            Fleet(engines),
            self.tokens,
            self.vault,
            aging_s=aging_s,
            pause=pause,
            keep_for_interactive=keep_for_interactive,
        )
        blobs = Blobs(home / "blobs")
        self.recalling = Recalling(self.store, self.loop)
        self.early = EarlyStarts(self.store, self.loop)
        self.queue = Queue(
            self.store,
            blobs,
            self.loop,
            first_workers=nobody,
            vault=self.vault,
            assets=Assets(blobs, limit=1_000_000),
            document_limit=100_000,
            cancel_grace_s=1.0,
            accept=self.early.accept if early_starts else None,
        )
        self.notifier = Notifier(
            self.store,
            self.vault,
            home / "notify.json",
            webhooks=webhooks,
            batch_secret="HOOK_KEY",
            timing=timing,
        )
        self.intakes = [
            Intake(
                engine,
                self.store,
                self.spool,
                policy=policy,
                breaker=breaker,
                loop=self.loop,
                heard=self.feed.heard,
                stop_grace_s=1.0,
                notice=self.notifier.worker,
            )
            for engine in self.engines
        ]
        self.intake = self.intakes[0]

    async def submit(self, **fields: object) -> JobId:
        return (await self.queue.submit([function_job(**fields)]))[0].job  # type: ignore[arg-type]

    async def until_ended(self, job: JobId) -> Head:
        async for _ in self.feed.watch(job, Cursor()):
            pass
        return self.store.head(job)

    async def until(self, job: JobId, fact: type) -> Seen:
        async for batch in self.feed.watch(job, Cursor()):
            for seen in batch:
                if isinstance(seen.fact, fact):
                    return seen
        raise AssertionError(f"{job} ended without {fact.__name__}")

    def facts(self, job: JobId) -> list[str]:
        return [record.kind for record in records_of(self.store, job)]


async def nobody() -> Sequence[Worker]:
    """No worker is about to come."""
    return ()


def records_of(store: Store, job: JobId) -> list[JournalRecord]:
    """A job's records, oldest first."""
    return list(store.journal.backwards(store.head(job).last_seq))[::-1]


@contextlib.asynccontextmanager
async def shell(
    home: Path,
    workers: Sequence[Worker] | None = None,
    seconds: Callable[[Attempt], float] = lambda _: 0.0,
    *,
    policy: Policy | None = None,
    aging_s: float = 60.0,
    webhooks: Sequence[Webhook] = (),
    timing: Timing = Timing(),  # noqa: B008
    journal: Journal | None = None,
    keep_for_interactive: int = 0,
    breaker: Breaker = Breaker(),  # noqa: B008
    beside: Sequence[SimulatedEngine] = (),
    early_starts: bool = True,
) -> AsyncIterator[Shell]:
    policy = policy or Policy(max_losses=3, backoff_s=0.01, backoff_max_s=0.02)
    workers = [worker()] if workers is None else workers
    made = Shell(
        home,
        workers,
        seconds,
        policy=policy,
        aging_s=aging_s,
        webhooks=webhooks,
        timing=timing,
        journal=journal,
        keep_for_interactive=keep_for_interactive,
        breaker=breaker,
        beside=beside,
        early_starts=early_starts,
    )
    for engine in made.engines:
        engine.open()
    intakes = (intake.run() for intake in made.intakes)
    parts = (made.loop.run(), *intakes, made.notifier.run(), made.recalling.run())
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await made.notifier.close()
        made.spool.close()
        await made.store.close()


__all__ = ["Needs", "QueueClass", "Shell", "function_job", "shell", "worker"]
