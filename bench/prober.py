"""Another client, in a process of its own: submits and asks for states at a steady pace and keeps
how long each answer took. `python -m bench.prober ADDRESS RATE`, the token on stdin; it goes on
until stdin closes, then prints its latencies as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from corral.sdk import figures
from corral.sdk.aio import AsyncClient


async def probe(address: str, token: str, rate: float) -> list[dict[str, float | str]]:
    function = figures.no_op()
    found: list[dict[str, float | str]] = []
    loop = asyncio.get_running_loop()
    async with AsyncClient(address, token) as client, asyncio.TaskGroup() as calls:
        handle = await client.submit(function, (figures.argument(0),))

        async def submit(number: int, due: float) -> None:
            nonlocal handle
            handle = await client.submit(function, (figures.argument(number),))
            found.append({"call": "submit", "at": time.time(), "s": loop.time() - due})

        async def status(due: float) -> None:
            await handle.status()
            found.append({"call": "status", "at": time.time(), "s": loop.time() - due})

        print("ready", flush=True)
        ending = loop.run_in_executor(None, sys.stdin.read)
        begun, number = loop.time(), 0
        while not ending.done():
            due = begun + number / rate
            await asyncio.sleep(due - loop.time())
            # Each in a task of its own: a slow answer must not slow the questions down.
            due = loop.time()
            calls.create_task(submit(number, due))
            calls.create_task(status(due))
            number += 1
    return found


if __name__ == "__main__":
    print(
        json.dumps(
            asyncio.run(probe(sys.argv[1], sys.stdin.readline().strip(), float(sys.argv[2])))
        )
    )
