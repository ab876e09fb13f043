"""Many workers that have nothing to do, in one process: real sockets, the real protocol.

    python -m bench.idle_agents COUNT < invitation

Says "ready" when all are welcome, and stays until its stdin closes.
"""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from corral.core.worker import Capabilities
from corral.joining import trust
from corral.joining.invitation import Invitation, parse
from corral.protocol import messages as wire

AT_ONCE = 10


def enrolled(told: Invitation, pem: str, name: str) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{told.url}/enrol",
        data=json.dumps({"name": name}).encode(),
        headers={"Authorization": f"Bearer {told.token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, context=trust.context(pem), timeout=60) as answer:
        card: dict[str, Any] = json.load(answer)
        return card


async def joined(told: Invitation, pem: str, name: str) -> tuple[ClientConnection, float]:
    card = await asyncio.to_thread(enrolled, told, pem, name)
    socket = await connect(
        f"{told.url.replace('https', 'wss', 1)}/worker",
        additional_headers={"Authorization": f"Bearer {card['credential']}"},
        compression=None,
        ping_interval=5.0,  # as an agent does
        ping_timeout=10.0,
        ssl=trust.context(pem),
        proxy=None,
    )
    register = wire.WorkerRegister(
        worker_id=card["worker_id"],
        software_version="bench",
        runner_protocol=wire.VERSION,
        capabilities=Capabilities(cpus=8.0, memory_gb=32.0, workloads=("python",)),
        name=name,
    )
    await socket.send(wire.encode([register]))
    (welcome,) = wire.decode_from_controller(await socket.recv())
    assert isinstance(welcome, wire.WorkerWelcome)
    return socket, welcome.heartbeat_s


async def beat(socket: ClientConnection, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        await socket.send(wire.encode([wire.WorkerHeartbeat(load=0.0, warm=1)]))


async def main(count: int, invitation: str) -> None:
    told = parse(invitation)
    pem = trust.fetched(told.host, told.port, told.sha256)
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> tuple[ClientConnection, float]:
        async with gate:
            return await joined(told, pem, f"idle{number}")

    there = await asyncio.gather(*(one(number) for number in range(count)))
    beating = [asyncio.create_task(beat(socket, seconds)) for socket, seconds in there]
    print("ready", flush=True)
    closing = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    done, _ = await asyncio.wait([closing, *beating], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()  # a worker that was dropped is not idle: let it be seen
    for task in beating:
        task.cancel()
    await asyncio.gather(*(socket.close() for socket, _ in there), return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.stdin.readline().strip()))
