"""The agent's one socket to its controller, dialled again whenever it is lost.

Messages of one turn of the event loop share a frame.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import msgspec
import structlog
from msgspec import Struct
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import broadcast
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import Event, State

from corral.agent.outbox import SentOutput, Told
from corral.core.malformed import MALFORMED
from corral.joining import trust
from corral.protocol import messages as wire

if TYPE_CHECKING:
    from corral.agent.agent import Agent
    from corral.agent.attempts.ledger import Ledger

log = structlog.get_logger("corral.agent.connection")

FRAME_MESSAGES = 512
FRAME_BYTES = 1 << 20
MAX_FRAME_BYTES = 2 << 20
"""Of several messages. One alone goes whatever its size, which `runner.LINE_LIMIT` bounds."""
BEHIND_BYTES = 1 << 20
"""Output that may wait to be sent before jobs wait in their own writes."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.05, 5.0
BESIDE_WAIT_S = 0.1
"""The longest where the controller is on the same machine: to look costs next to nothing."""
SETTLED_S = 5.0
"""A connection that held for less is no reason to dial at once when it is lost."""
OPEN_S = 8.0
"""Once a network is back, a new try gets through sooner than the system's own repetitions."""
COALESCE_S = 0.005
WELCOME_S = 20.0
PING_S = 5.0
QUIET_LOOKS = 2
"""Pings in a row after which nothing may have come, neither an answer nor anything else."""
CLOSE_S = 1.0
DEFAULT_GRACE_S = 30.0


class ControllerAddress(Struct):
    """Where the controller is and how to be this worker, as `agent.json` says it."""

    url: str
    credential: str
    worker_id: str
    name: str = ""
    certificate: str = ""
    """The only one that the controller may show, as PEM."""

    @property
    def root(self) -> str:
        """Where attempts fetch and store, as this machine reaches it."""
        scheme, netloc, path, _, _ = urlsplit(self.url)
        scheme = {"ws": "http", "wss": "https"}.get(scheme, scheme)
        return urlunsplit((scheme, netloc, path.rstrip("/").removesuffix("/worker"), "", ""))

    @property
    def socket(self) -> str:
        scheme, netloc, path, query, _ = urlsplit(self.url)
        scheme = {"http": "ws", "https": "wss"}.get(scheme, scheme)
        return urlunsplit((scheme, netloc, path if path.strip("/") else "/worker", query, ""))


class AgentSocket(ClientConnection):
    """A WebSocket whose frames are heard where they arrive: waking a task for each of them costs
    more than most of them say."""

    heard: Callable[[bytes], None] | None = None
    drained: Callable[[], None] | None = None
    _is_quiet = False
    """Nothing came since the last look."""

    @property
    def writable(self) -> bool:
        return self.state is State.OPEN and not self.paused

    def data_received(self, data: bytes) -> None:
        self._is_quiet = False
        super().data_received(data)

    async def keepalive(self) -> None:
        """A controller that reads nothing for now, because its disk is full, answers no ping; but
        it says something. One from which nothing comes is out of reach."""
        assert self.ping_interval is not None
        quiet = 0
        while quiet < QUIET_LOOKS:
            self._is_quiet = True
            if self.writable:
                await self.ping()
            await asyncio.sleep(self.ping_interval)
            quiet = quiet + 1 if self._is_quiet else 0
        self.protocol.fail(CloseCode.INTERNAL_ERROR, "nothing came from the controller")
        self.transport.abort()

    def process_event(self, event: Event) -> None:
        if (
            self.heard is not None
            and isinstance(event, Frame)
            and event.opcode is Opcode.BINARY
            and event.fin
        ):
            self.heard(bytes(event.data))
        else:
            super().process_event(event)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.drained is not None:
            self.drained()


class Replaced(Exception):
    """Another process took this worker's place."""


class Revoked(Exception):
    """The controller wants nothing to do with this worker any more."""


class ControllerAway(Exception):
    """The controller is gone, and did not come back within its grace."""


class AgentConnection:
    ledger: Ledger

    def __init__(
        self,
        address: Callable[[], ControllerAddress],
        agent: Agent,
        *,
        gives_up: bool,
        lives: Callable[[], bool] = lambda: False,
        pause: Callable[[float], float] | None = None,
    ) -> None:
        self._pause = pause or jittered
        self._lives = lives
        """Whether the controller is there, though it does not answer: stopped, or very busy."""
        self._address, self._agent, self._gives_up = address, agent, gives_up
        self._pending: list[wire.Message] = []
        self._pending_bytes = 0
        self.sent_output = SentOutput()
        self._leaving = False
        """Whether what is pending is about to be written."""
        self._sent = asyncio.Event()
        self._behind = False
        self._beating: asyncio.TimerHandle | None = None
        self._socket: AgentSocket | None = None
        self.grace_s = DEFAULT_GRACE_S

    @property
    def connected(self) -> bool:
        return self._socket is not None

    def send(self, message: wire.Message) -> None:
        self._pending.append(message)
        self._leave_soon()

    def send_at_once(self, message: wire.Message) -> None:
        """Before the turn ends, since somebody waits for it; unless there is plenty to do here."""
        self._pending.append(message)
        if self.ledger.roll.has_work_ahead():
            self._leave_soon()
        else:
            self._leave()

    def send_output(self, message: Told, size: int) -> bool:
        """Send; True when the reader should pause until `reports.resume`."""
        self.sent_output.add(message, size)
        self._pending.append(message)
        self._pending_bytes += size
        self._leave_soon()
        if self._pending_bytes > BEHIND_BYTES:
            self._behind = True
        return self._behind

    async def flush(self) -> None:
        """Until everything said so far is on its way."""
        while self._pending and self._socket is not None:
            self._sent.clear()
            await self._sent.wait()

    async def close(self) -> None:
        """Hang up. `run` dials again, unless it is cancelled."""
        if self._socket is not None:
            await hang_up(self._socket)

    # --- dialling ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Stay connected, until cancelled, replaced, revoked, or tired of waiting."""
        loop = asyncio.get_running_loop()
        wait_s, away_since, told = FIRST_WAIT_S, loop.time(), ""
        longest = BESIDE_WAIT_S if self._gives_up else LONGEST_WAIT_S
        while True:
            dialled = loop.time()
            try:
                await self._session()
                reason = "the controller closed the connection"
            except InvalidStatus as refused:
                status = refused.response.status_code
                reason = f"it answered {status} to the worker's credential"
            except (OSError, WebSocketException, TimeoutError, *MALFORMED) as error:
                reason = str(error) or type(error).__name__
            if self._socket is not None:
                self._socket = None
                self._sent.set()
                self._agent.disconnected()
                away_since, told = loop.time(), ""
                if away_since - dialled > SETTLED_S:
                    wait_s = FIRST_WAIT_S
            if reason != told:
                log.info("controller_unreachable", reason=reason)
                told = reason
            pause = self._pause(wait_s)
            if self._gives_up:
                left = away_since + self.grace_s - loop.time()
                if left > 0:
                    pause = min(pause, max(left, 0.01))
                elif not self._lives():
                    raise ControllerAway(reason)
            await asyncio.sleep(pause)
            wait_s = min(wait_s * 2, longest)

    async def _session(self) -> None:
        address = self._address()
        socket = await connect(
            address.socket,
            additional_headers={"Authorization": f"Bearer {address.credential}"},
            compression=None,
            max_size=None,
            open_timeout=OPEN_S,
            ping_interval=PING_S,
            close_timeout=CLOSE_S,
            proxy=None,
            create_connection=AgentSocket,
            ssl=trust.context(address.certificate) if address.certificate else None,
        )
        assert isinstance(socket, AgentSocket)
        try:
            await self._converse(socket, self._agent.register(address))
        except ConnectionClosed as closed:
            if closed.rcvd is not None and closed.rcvd.code == wire.CLOSE_REPLACED:
                raise Replaced(closed.rcvd.reason) from closed
            if closed.rcvd is not None and closed.rcvd.code == wire.CLOSE_REVOKED:
                raise Revoked(closed.rcvd.reason) from closed
            if closed.rcvd is not None and closed.rcvd.code == wire.CLOSE_INCOMPATIBLE:
                self._agent.look_for_update()  # its own Corral would get along with it
            raise
        finally:
            if self._beating is not None:
                self._beating.cancel()
            await hang_up(socket)

    async def _converse(self, socket: AgentSocket, register: wire.WorkerRegister) -> None:
        broken: asyncio.Future[str | bytes] = asyncio.get_running_loop().create_future()

        def heard(frame: bytes) -> None:
            try:
                messages = wire.decode_from_controller(frame)
                if self._socket is None:
                    self._welcomed(messages.pop(0), socket)
                    patience.reschedule(None)
                if messages:
                    self._agent.deliver(messages)
            except (*MALFORMED, IndexError) as error:
                if not broken.done():
                    broken.set_exception(error)

        # Whole frames are heard as they come; this one hears only of the end.
        closed = asyncio.ensure_future(socket.recv())
        try:
            async with asyncio.timeout(WELCOME_S) as patience:
                socket.heard = heard
                await socket.send(wire.encode([register]))
                await asyncio.wait({closed, broken}, return_when=asyncio.FIRST_COMPLETED)
            (broken if broken.done() else closed).result()
            raise msgspec.ValidationError("a frame came in pieces")
        finally:
            closed.cancel()

    def _welcomed(self, welcome: wire.FromController, socket: AgentSocket) -> None:
        if not isinstance(welcome, wire.WorkerWelcome):
            raise msgspec.ValidationError(f"expected a welcome, got {type(welcome).__name__}")
        self.grace_s = welcome.grace_s
        self._agent.welcomed(welcome)
        self._socket = socket
        socket.drained = self._leave
        self._resume(self.sent_output.again(acknowledges=welcome.acknowledges))
        self._beat_after(welcome.heartbeat_s)
        log.info("controller_connected", name=welcome.name)

    def _resume(self, output: list[Told]) -> None:
        """What was said into a dying socket may be lost: starts, output and results are said again,
        around what was never sent."""
        known = (wire.JobStarted, wire.JobCompleted, wire.JobFailed)
        kept = {id(message) for message in output}
        unsent = [
            message
            for message in self._pending
            if not isinstance(message, known) and id(message) not in kept
        ]
        started, ended = self.ledger.started(), self.ledger.results.kept.values()
        self._pending = [*started, *output, *unsent, *ended]
        self._pending_bytes = max(self._pending_bytes, self.sent_output.size)
        self._leaving = False
        self._leave_soon()

    def _beat_after(self, seconds: float) -> None:
        def beat() -> None:
            self.send(self._agent.heartbeat())
            self._beat_after(seconds)

        self._beating = asyncio.get_running_loop().call_later(seconds, beat)

    # --- what leaves ---------------------------------------------------------------------------

    def _leave_soon(self) -> None:
        if not self._leaving and self._socket is not None:
            self._leaving = True
            asyncio.get_running_loop().call_soon(self._leave_now_or_later)

    def _leave_now_or_later(self) -> None:
        if self.ledger.roll.has_work_ahead():
            # Nobody waits for these messages to be able to go on: let more join the frame.
            asyncio.get_running_loop().call_later(COALESCE_S, self._leave)
        else:
            self._leave()

    def _leave(self) -> None:
        self._leaving = False
        socket = self._socket
        while self._pending and socket is not None and socket.writable:
            for frame in _frames(self._batch()):
                broadcast([socket], frame)
        if not self._pending:
            if self._behind:
                self._behind = False
                self.ledger.reports.resume()
            self._sent.set()

    def _batch(self) -> list[wire.Message]:
        """As much as one frame should carry."""
        if len(self._pending) <= FRAME_MESSAGES and self._pending_bytes <= FRAME_BYTES:
            batch, self._pending, self._pending_bytes = self._pending, [], 0
            return batch
        batch, size = [], 0
        for message in self._pending[:FRAME_MESSAGES]:
            batch.append(message)
            size += len(getattr(message, "text", "")) + len(getattr(message, "data", b""))
            if size > FRAME_BYTES:
                break
        del self._pending[: len(batch)]
        self._pending_bytes = max(self._pending_bytes - size, 0)
        return batch


def _frames(batch: Sequence[wire.Message]) -> Iterator[bytes]:
    """Nearly always one; more where it would be larger than a controller takes."""
    frame = wire.encode(batch)
    if len(frame) <= MAX_FRAME_BYTES or len(batch) == 1:
        yield frame
    else:
        half = len(batch) // 2
        yield from _frames(batch[:half])
        yield from _frames(batch[half:])


async def hang_up(socket: ClientConnection) -> None:
    """Close; without waiting for a controller that no longer reads."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await socket.close()
    except TimeoutError:
        socket.transport.abort()


def jittered(wait_s: float) -> float:
    """Not all workers at once: between half and the whole of it."""
    return wait_s * random.uniform(0.5, 1.0)  # noqa: S311
