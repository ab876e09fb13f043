"""A real controller in the test's own process: its queue takes jobs that no door offers as they
are. Its workers are real ones, in processes of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from corral.controller.queue import Queue
from corral.core.job import Job
from corral.home import Home
from corral.sdk.aio import AsyncClient
from corral.sdk.handles import AsyncHandle
from corral.server.controller import Controller
from corral.server.listening import listen
from corral.settings import load
from tests.eventually import eventually_async


class Inside:
    def __init__(self, queue: Queue, client: AsyncClient) -> None:
        self._queue, self.client = queue, client

    async def submit(self, job: Job) -> AsyncHandle:
        (accepted,) = await self._queue.submit([job])
        return self.client.job(accepted.job)

    async def until_connected(self, *names: str) -> None:
        async def connected() -> bool:
            known = await self.client.workers()
            return set(names) <= {one.name for one in known if one.connected}

        await eventually_async(connected, f"{', '.join(names)} connected")


@asynccontextmanager
async def controller(home: Path, yaml: str) -> AsyncIterator[Inside]:
    home.mkdir(parents=True, exist_ok=True)
    (home / "corral.yaml").write_text(yaml)
    flags = {"port": 0, "grpc_port": 0, "disk.reserve_mb": 1.0, "log_level": "error"}
    config = load(home, flags, environ={})
    kept = Home(home)
    kept.take()
    running = Controller(config, kept, listen("127.0.0.1", 0, "--port"))
    task = asyncio.create_task(running.run())
    try:
        await eventually_async(lambda: kept.controller.exists() or task.done(), "a controller")
        async with AsyncClient(home=home) as client:
            yield Inside(running._queue, client)
    finally:
        running._asked_to_stop.set()
        await task
        kept.release()
