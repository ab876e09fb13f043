"""Scaffolding: an engine whose attempts are children of the controller that run by themselves, and
a controller that has no other: `python -m tests.engines.children` before the words `corral up`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Collection, Sequence

import msgspec
from msgspec.structs import replace

from corral.core.events import EngineReport, WorkerJoined
from corral.core.job import Failure, JobId
from corral.core.worker import Capabilities, Worker
from corral.engines.engine import Attempt, EngineContext
from corral.engines.posted import Mailbox
from corral.home import write_durably
from corral.variables import build_environment

# Levers: files `by`, an address instead of the controller's own, and `nobody`: start no process.
DIED = Failure(code="process_died", message="Its process is gone.")


class ChildrenEngine:
    name = "children"

    def __init__(self, context: EngineContext) -> None:
        self.trouble = ""
        self.changed: Callable[[], None] = lambda: None
        self.mailbox = Mailbox(context)
        self._context = context
        self._folder = context.home.path / "children"
        self._folder.mkdir(exist_ok=True)
        both = ("python", "pipeline")
        can = Capabilities(4.0, 4.0, ahead=0, workloads=both, task_types=("sketch",))
        self._worker = Worker(id="here", name="here", engine=self.name, capabilities=can)
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, holding: Collection[str]) -> None:
        """What a controller before this one started, and what still lives of it."""
        found = []
        for card in self._folder.glob("*.pid"):
            job, attempt = card.stem.rsplit(".", 1)
            found.append((job, int(attempt)))
            self.mailbox.expect(job, int(attempt), self._worker.id)
            self._watch(job, int(attempt), int(card.read_text()))
        worker = self._worker
        has = tuple(found)
        self.mailbox.report(
            WorkerJoined(worker.id, worker.name, worker.capabilities, has, remembers=True)
        )

    def workers(self) -> Sequence[Worker]:
        return [self._worker]

    def start(self, attempt: Attempt) -> None:
        if not self.mailbox.expect(attempt.job, attempt.number, attempt.worker):
            return
        ticket = self._context.ticket(attempt.job, attempt.number)
        if (by := self._folder / "by").exists():
            ticket = dataclasses.replace(ticket, url=by.read_text())
        path = self._folder / f"{attempt.job}.{attempt.number}.json"
        write_durably(path, msgspec.json.encode(ticket))
        if (self._folder / "nobody").exists():
            return
        with path.with_suffix(".log").open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "corral.runtime.standalone", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=build_environment(),
                start_new_session=True,
            )
        path.with_suffix(".pid").write_text(str(child.pid))
        self._watch(attempt.job, attempt.number, child.pid)

    def _watch(self, job: JobId, attempt: int, pid: int) -> None:
        task = asyncio.create_task(self._until_gone(job, attempt, pid))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _until_gone(self, job: JobId, attempt: int, pid: int) -> None:
        while _alive(pid):  # noqa: ASYNC110 (somebody else's child may be looked at, no more)
            await asyncio.sleep(0.02)
        (self._folder / f"{job}.{attempt}.pid").unlink(missing_ok=True)
        self.mailbox.gone(job, attempt, self._worker.id, DIED)

    async def stop(
        self, job: JobId, attempt: int, *, grace_s: float, unbegun: bool = False
    ) -> None:
        if not unbegun:
            self.mailbox.cancel(job, attempt, grace_s)

    async def running(self) -> Collection[tuple[JobId, int]]:
        return self.mailbox.running()

    def events(self) -> AsyncIterator[Sequence[EngineReport]]:
        return self.mailbox.events()

    async def drain(self, grace_s: float) -> None:
        """They go on without us."""

    async def close(self) -> None:
        await self.mailbox.settled()


def _alive(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def build(context: EngineContext) -> ChildrenEngine:
    return ChildrenEngine(context)


def main() -> int:
    from corral import settings
    from corral.server import serve

    sys.modules["corral.engines.children"] = sys.modules[__name__]
    given = argparse.ArgumentParser()
    given.add_argument("--port", type=int)
    given.add_argument("--grpc-port", type=int)
    flags = vars(given.parse_known_args()[0])
    config = settings.load(flags={**flags, "worker.enabled": False})
    engines = replace(config.settings, engines=("children",))
    return serve(replace(config, settings=engines))


if __name__ == "__main__":
    sys.exit(main())
