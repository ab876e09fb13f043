"""Somebody else, in a process of its own, who asks at a steady pace and keeps how long each answer
took: `python -m bench.prober RATE client ADDRESS`, the token on stdin, submits and asks for states;
`python -m bench.prober RATE health HOST PORT` asks for `/health`, each time over a new connection.
It goes on until stdin closes, then prints what it measured as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from corral.sdk import figures
from corral.sdk.aio import AsyncClient

Ask = Callable[[int], Awaitable[dict[str, Any]]]
QUESTION = "GET /health HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"


async def paced(rate: float, questions: Sequence[Ask]) -> list[dict[str, Any]]:
    """Each in a task of its own: a slow answer must not slow the questions down."""
    found: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()

    async def timed(ask: Ask, number: int, due: float) -> None:
        said = await ask(number)
        found.append({"at": time.time(), "s": loop.time() - due, **said})

    async with asyncio.TaskGroup() as asked:
        print("ready", flush=True)
        ending = loop.run_in_executor(None, sys.stdin.read)
        begun, number = loop.time(), 0
        while not ending.done():
            await asyncio.sleep(begun + number / rate - loop.time())
            due = loop.time()
            for ask in questions:
                asked.create_task(timed(ask, number, due))
            number += 1
    return found


async def client(rate: float, address: str) -> list[dict[str, Any]]:
    function = figures.no_op()
    async with AsyncClient(address, sys.stdin.readline().strip()) as other:
        handle = await other.submit(function, (figures.argument(0),))

        async def submit(number: int) -> dict[str, Any]:
            nonlocal handle
            handle = await other.submit(function, (figures.argument(number),))
            return {"call": "submit"}

        async def status(number: int) -> dict[str, Any]:
            await handle.status()
            return {"call": "status"}

        return await paced(rate, [submit, status])


async def health(rate: float, host: str, port: str) -> list[dict[str, Any]]:
    async def ask(number: int) -> dict[str, Any]:
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(QUESTION.format(host=host).encode())
            answer = await reader.read()
            writer.close()
        except OSError:
            answer = b""
        return {"failed": not answer.startswith(b"HTTP/1.1 200 ")}

    return await paced(rate, [ask])


if __name__ == "__main__":
    probe = {"client": client, "health": health}[sys.argv[2]]
    print(json.dumps(asyncio.run(probe(float(sys.argv[1]), *sys.argv[3:]))))
