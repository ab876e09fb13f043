"""Somebody who asks `/health` at a steady pace, in a process of its own, each time over a new
connection. `python -m bench.health_prober HOST PORT RATE`; it goes on until stdin closes, then
prints how long each answer took as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time

QUESTION = "GET /health HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"


async def probe(host: str, port: int, rate: float) -> list[dict[str, float]]:
    found: list[dict[str, float]] = []
    loop = asyncio.get_running_loop()

    async def ask(due: float) -> None:
        try:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(QUESTION.format(host=host).encode())
            answer = await reader.read()
            writer.close()
        except OSError:
            answer = b""
        good = answer.startswith(b"HTTP/1.1 200 ")
        found.append({"at": time.time(), "s": loop.time() - due, "failed": float(not good)})

    async with asyncio.TaskGroup() as asked:
        print("ready", flush=True)
        ending = loop.run_in_executor(None, sys.stdin.read)
        begun, number = loop.time(), 0
        while not ending.done():
            due = begun + number / rate
            await asyncio.sleep(due - loop.time())
            # Each in a task of its own: a slow answer must not slow the questions down.
            asked.create_task(ask(loop.time()))
            number += 1
    return found


if __name__ == "__main__":
    host, port, rate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    print(json.dumps(asyncio.run(probe(host, port, rate))))
