"""Somebody in between who holds the controller's key: passes everything on, and repeats, swaps and
delays whole WebSocket messages when told to. TCP hides what a network does to packets; this does
the same to what both sides read."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from corral.joining import trust

SWAP_WITHIN_S = 0.05
"""A message that is held back for the next one leaves alone after this time."""
DATA = (1, 2)
END = b"\r\n\r\n"


@dataclass
class Mischief:
    """How often each thing is done to a message, of 1."""

    repeat: float = 0.0
    swap: float = 0.0
    delay: float = 0.0
    delay_s: float = 0.2
    seed: int = 0


class Meddler:
    """Listens at `address`, in the controller's name where that has a certificate."""

    def __init__(self, listen: str, controller: tuple[str, int], tls: Path | None) -> None:
        self.mischief = Mischief()
        self.done = {"repeated": 0, "swapped": 0, "delayed": 0}
        self._controller, self._tls = controller, tls
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        opening = asyncio.run_coroutine_threadsafe(self._open(listen), self._loop)
        self.address: tuple[str, int] = opening.result(10)

    async def _open(self, listen: str) -> tuple[str, int]:
        shown: ssl.SSLContext | None = None
        if self._tls is not None:
            shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            shown.load_cert_chain(self._tls / "certificate.pem", self._tls / "key.pem")
        self._server = await asyncio.start_server(self._serve, listen, 0, ssl=shown)
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._connect(reader, writer)
        except (OSError, EOFError, asyncio.CancelledError):
            pass  # as one side hangs up, so does the other
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _connect(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        context = None
        if self._tls is not None:
            context = trust.context((self._tls / "certificate.pem").read_text())
        far, on = await asyncio.open_connection(*self._controller, ssl=context)
        try:
            asked = await near.readuntil(END)
            on.write(asked)
            if b"upgrade: websocket" in asked.lower():
                back.write(await far.readuntil(END))
                both = (_Lane(self, near, on, "up").run(), _Lane(self, far, back, "down").run())
            else:
                both = (_pour(near, on), _pour(far, back))
            lanes = [asyncio.ensure_future(lane) for lane in both]
            await asyncio.wait(lanes, return_when=asyncio.FIRST_COMPLETED)
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)
        finally:
            on.transport.abort()


async def _pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


class _Lane:
    """Messages one way. The first is left alone: without it there is no conversation."""

    def __init__(
        self,
        meddler: Meddler,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: str,
    ) -> None:
        self._meddler, self._reader, self._writer = meddler, reader, writer
        self._random = random.Random(f"{meddler.mischief.seed}.{way}")
        self._held: bytes | None = None
        self._release: asyncio.TimerHandle | None = None
        self._later: set[asyncio.TimerHandle] = set()

    async def run(self) -> None:
        first = True
        try:
            while True:
                opcode, whole, frame = await self._frame()
                if first or opcode not in DATA or not whole:
                    first &= opcode not in DATA
                    self._writer.write(frame)
                else:
                    self._meddle(frame)
                await self._writer.drain()
        finally:
            for timer in (*self._later, self._release):
                if timer is not None:
                    timer.cancel()

    def _meddle(self, frame: bytes) -> None:
        mischief, done, chance = self._meddler.mischief, self._meddler.done, self._random.random
        if chance() < mischief.repeat:
            done["repeated"] += 1
            self._writer.write(frame)
            # The second time a little later: by then its matter may be over.
            self._after(mischief.delay_s, lambda: self._writer.write(frame))
        elif chance() < mischief.delay:
            done["delayed"] += 1
            self._after(mischief.delay_s, lambda: self._writer.write(frame))
        elif self._held is None and chance() < mischief.swap:
            done["swapped"] += 1
            self._held = frame
            self._release = asyncio.get_running_loop().call_later(SWAP_WITHIN_S, self._let_go)
        else:
            self._writer.write(frame)
            self._let_go()

    def _let_go(self) -> None:
        if self._release is not None:
            self._release.cancel()
        if self._held is not None:
            self._writer.write(self._held)
            self._held = None

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        def now() -> None:
            self._later.discard(timer)
            then()

        timer = asyncio.get_running_loop().call_later(seconds, now)
        self._later.add(timer)

    async def _frame(self) -> tuple[int, bool, bytes]:
        """(opcode, whether it is a whole message, its bytes as they came)."""
        read: Callable[[int], Awaitable[bytes]] = self._reader.readexactly
        head = await read(2)
        size = head[1] & 0x7F
        if size > 125:
            more = await read(2 if size == 126 else 8)
            head, size = head + more, int.from_bytes(more, "big")
        if head[1] & 0x80:
            head += await read(4)
        return head[0] & 0x0F, bool(head[0] & 0x80), head + await read(size)


@contextlib.contextmanager
def meddling(meddler: Meddler, **how: float) -> Iterator[None]:
    """Mischief for a while."""
    before, meddler.mischief = meddler.mischief, Mischief(**how)  # type: ignore[arg-type]
    try:
        yield
    finally:
        meddler.mischief = before
