"""A client's connection to its controller: finding it, calling it, and coming back to it.

gRPC errors turn into those of `core.errors`; what was interrupted is tried again for a while.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import os
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import grpc.aio

from corral import correlation, settings
from corral.contract import corral_pb2 as pb
from corral.contract import service
from corral.contract.read_views import V, read_as
from corral.core import errors
from corral.home import read_json
from corral.joining.trust import NAME
from corral.sdk.files.progress import Progress
from corral.sdk.transport.local_door import AsyncLocalSocket, socket_of

if TYPE_CHECKING:
    from corral.sdk.submit.own_code import OwnCode

RECONNECT_FOR_S = 60.0
"""How long a lost controller is waited for, counted from the last sign of life."""

CHUNK_BYTES = 512 * 1024
BROUGHT_FOR_S = 1800.0
"""Stored bytes that somebody counted on stay for an hour, whether a job names them or not."""

_LOOPBACK = ("127.", "localhost:", "[::1]:", "unix:")

_BY_STATUS: dict[grpc.StatusCode, type[errors.CorralError]] = {
    grpc.StatusCode.UNAVAILABLE: errors.Unavailable,
    grpc.StatusCode.CANCELLED: errors.Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.Unavailable,
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthorized,
    grpc.StatusCode.PERMISSION_DENIED: errors.Forbidden,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.TooLarge,
}


class Door(NamedTuple):
    """Where a controller listens and the token that opens it."""

    address: str
    token: str
    home: Path | None = None
    """Where the token was looked for."""
    certificate: str = ""
    """The only one that the controller may show, as PEM; without one it is on this machine."""

    @property
    def local(self) -> bool:
        return self.address.startswith(_LOOPBACK)


def locate(
    address: str | None = None,
    token: str | None = None,
    home: str | os.PathLike[str] | None = None,
) -> Door:
    """Explicit values first, then CORRAL_ADDRESS and CORRAL_TOKEN, then what `corral login`
    stored, then what the controller of this home wrote down. The home's token is never offered to
    another machine."""
    home = Path(home) if home else settings.default_home()
    address = address or settings.client_address() or ""
    token = token or settings.client_token() or ""
    login, card = _told(home / "login.json"), _told(home / "controller.json")
    if login and address in ("", login.get("address")):
        where = login.get("address", "")
        return Door(where, token or login.get("token", ""), home, login.get("certificate", ""))
    defaults = settings.Settings()
    address = address or card.get("grpc", "") or f"{defaults.host}:{defaults.grpc_port}"
    if not address.startswith("unix:") and not re.fullmatch(r"[^/\s]+:\d+", address):
        raise errors.InvalidSettings(
            f"The address of a controller is HOST:PORT of its gRPC door, as 127.0.0.1:50051; got "
            f"{address!r}. `corral status` shows it; CORRAL_ADDRESS gives it."
        )
    certificate = _read(Path(card["certificate"])) if card.get("certificate") else ""
    if address != card.get("grpc"):
        certificate = ""  # another controller's
    door = Door(address, token, home, certificate)
    if not door.token and (door.local or certificate):
        door = door._replace(token=_read(home / "token").strip())
    return door


def _told(path: Path) -> dict[str, str]:
    return {key: word for key, word in read_json(path).items() if isinstance(word, str)}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


class Patience:
    """Growing pauses between tries; gives up when no sign of life came for long enough."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._spent_s, self._pause_s = 0.0, 0.05

    async def pause(self, error: errors.CorralError) -> None:
        """Waits before the next try, or raises the error when it cannot help or comes too late."""
        if not isinstance(error, errors.Unavailable) or self._spent_s >= self._limit_s:
            raise error from None
        self._spent_s += await self.rest()

    async def rest(self) -> float:
        """Waits a little longer than the last time; returns how long."""
        pause_s = self._pause_s * random.uniform(0.7, 1.3)  # noqa: S311 - spreads clients out
        await asyncio.sleep(pause_s)
        self._pause_s = min(self._pause_s * 2, 5.0)
        return pause_s


class Connection:
    """One channel to one controller, opened by the first call inside a running event loop."""

    def __init__(self, door: Door, *, patience_s: float = RECONNECT_FOR_S) -> None:
        self.door = door
        self._patience_s = patience_s
        self.met = False
        """Whether the controller ever answered, on whatever channel."""
        self._channel: grpc.aio.Channel | None = None
        self._stub: Any = None
        self._local: AsyncLocalSocket | None = None
        self._dialling = asyncio.Lock()
        self._brought: dict[str, float] = {}
        """When the controller was last asked for, or counted on to have, this code."""

    async def close(self) -> None:
        channel, self._channel, self._stub = self._channel, None, None
        local, self._local = self._local, None
        if local is not None:
            local.close()
        if channel is not None:
            await channel.close(None)

    async def submit(
        self, request: pb.SubmitJobsRequest, correlation_id: str = ""
    ) -> pb.SubmitJobsReply:
        """By the local door where there is one. Asking twice is the same, by the jobs' keys."""
        reply = await self._by_local_door(request, correlation_id)
        if reply is None:
            reply = await self.call("SubmitJobs", request, correlation_id=correlation_id)
        self.met = True
        return reply

    async def _by_local_door(
        self, request: pb.SubmitJobsRequest, correlation_id: str
    ) -> pb.SubmitJobsReply | None:
        try:
            local = self._local or await self._dial()
            if local is None:
                return None
            return await local.submit(request.SerializeToString(), correlation_id)
        except (OSError, ValueError):
            self._local = None
            return None

    async def _dial(self) -> AsyncLocalSocket | None:
        async with self._dialling:
            if self._local is None:
                path = socket_of(self.door.home, self.door.address)
                if path is not None:
                    self._local = await AsyncLocalSocket.connect(path, self.door.token)
            return self._local

    def __del__(self) -> None:
        if self._local is not None:
            self._local.drop()

    async def call(
        self, method: str, request: Any, *, again: bool = True, correlation_id: str = ""
    ) -> Any:
        """One question, one answer. `again=False` where asking twice would do it twice. Messages
        that stream are made by a function, anew for each try."""
        patience = self.patience()
        while True:
            try:
                sent = request() if inspect.isfunction(request) else request
                metadata = self.metadata(correlation_id)
                reply = await self._method(method)(sent, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                translated = self._translate(error)
                if not again:
                    raise translated from None
                await patience.pause(translated)
            else:
                self.met = True
                return reply

    async def ask(self, kind: type[V], method: str, request: Any, *, again: bool = True) -> V:
        return read_as(kind, await self.call(method, request, again=again))

    async def stream(self, method: str, request: Any) -> AsyncGenerator[Any, None]:
        """The messages of one streaming call, once: resuming is the caller's business."""
        call = self._method(method)(request, metadata=self.metadata())
        try:
            async for message in call:
                self.met = True
                yield message
        except grpc.aio.AioRpcError as error:
            raise self._translate(error) from None
        finally:
            call.cancel()

    async def watch(
        self,
        *,
        job_id: str = "",
        batch: str = "",
        after: str = "",
        until_now: bool = False,
        ends_only: bool = False,
    ) -> AsyncGenerator[list[pb.JobEvent], None]:
        """Events from a cursor on, a list at a time. A lost connection is made again and goes on
        behind the last event seen. A job's events end with its end; a batch may always grow."""
        patience = self.patience()
        while True:
            request = pb.WatchRequest(
                job_id=job_id, batch=batch, after=after, until_now=until_now, ends_only=ends_only
            )
            messages = self.stream("WatchJobs", request)
            lost: errors.CorralError | None = None
            try:
                async for message in messages:
                    patience = self.patience()  # met by now, though perhaps not when we began
                    if not message.events:
                        continue
                    events = list(message.events)
                    after = events[-1].cursor
                    yield events
                    if job_id and events[-1].HasField("ended"):
                        return
            except errors.CorralError as error:
                lost = error
            finally:
                await messages.aclose()
            if lost:
                await patience.pause(lost)
            elif until_now:
                return
            else:
                await patience.rest()  # ended in peace: nothing to tell right now

    async def put(self, data: bytes, what: str = "") -> pb.BlobRef:
        """Stores bytes ahead of the jobs that name them; doing it twice changes nothing. `what`
        they are is shown, where there are many."""
        with Progress(f"sending {what}", len(data) if what else 0) as progress:
            sha256 = await self.put_file("PutPackage", lambda: _pieces(data, progress))
        return pb.BlobRef(sha256=sha256, size=len(data))

    def has(self, code: OwnCode | None) -> bool:
        """Whether the controller surely has it: it was there a while ago, and so it stays."""
        if code is None:
            return True
        at = self._brought.get(code.sha256)
        now = time.monotonic()
        if at is None or now - at > BROUGHT_FOR_S:
            return False
        self._brought[code.sha256] = now
        return True

    async def bring(self, code: OwnCode | None) -> None:
        """Stores the caller's own modules, unless the controller has them."""
        if code is None or self.has(code):
            return
        asked = pb.AssetRequest(sha256=code.sha256, size=len(code.data))
        if not (await self.call("FindAsset", asked)).known:
            await self.put(code.data, ", ".join(code.names))
        self._brought[code.sha256] = time.monotonic()

    async def put_file(self, method: str, pieces: Callable[[], AsyncIterator[bytes]]) -> str:
        """Stores a file piece by piece, anew after an interruption; returns its sha256."""
        stored = await self.call(method, lambda: (pb.Chunk(data=piece) async for piece in pieces()))
        return str(stored.sha256)

    async def get(
        self, job_id: str, name: str, sha256: str, write: Callable[[bytes], object]
    ) -> None:
        """A result or artifact, handed to `write` piece by piece and proven at its end. After an
        interruption the bytes already written are skipped: a blob never changes."""
        patience = self.patience()
        written = 0
        digest = hashlib.sha256()
        while True:
            skip = written
            chunks = self.stream("GetBlob", pb.BlobRequest(job_id=job_id, name=name))
            try:
                async for chunk in chunks:
                    piece = chunk.data[skip:]
                    skip -= len(chunk.data) - len(piece)
                    write(piece)
                    digest.update(piece)
                    written += len(piece)
                    patience = self.patience()
                break
            except errors.CorralError as error:
                await patience.pause(error)
            finally:
                await chunks.aclose()
        if sha256 and digest.hexdigest() != sha256:
            raise errors.StorageFailed(
                f"{name} of job {job_id} is damaged on the controller's disk: its bytes are not "
                "those that were stored. Run the job again.",
                job_id=job_id,
            )

    def patience(self) -> Patience:
        # Whoever never met the controller should hear at once that there is none.
        return Patience(self._patience_s if self.met else 0.0)

    def _method(self, name: str) -> Any:
        if self._stub is None:
            self._channel = self.open(grpc.aio)
            self._stub = service.stub(self._channel)
        return getattr(self._stub, name)

    def open(self, kind: Any) -> Any:
        """A channel of `grpc.aio`, or one of `grpc` for blocking calls beside it."""
        options: list[tuple[str, Any]] = list(service.CHANNEL_OPTIONS)
        if self.door.local:
            # A proxy for the web has no business on the way to this machine itself.
            options.append(("grpc.enable_http_proxy", 0))
        pem = self.door.certificate
        if self.door.local and not pem:
            return kind.insecure_channel(self.door.address, options=options)
        if pem:
            options.append(("grpc.ssl_target_name_override", NAME))
        credentials = grpc.ssl_channel_credentials(pem.encode() or None)
        return kind.secure_channel(self.door.address, credentials, options=options)

    def metadata(self, correlation_id: str = "") -> tuple[tuple[str, str], ...]:
        told = (("authorization", f"Bearer {self.door.token}"),) if self.door.token else ()
        return (*told, (correlation.KEY, correlation_id)) if correlation_id else told

    def _translate(self, error: grpc.aio.AioRpcError) -> errors.CorralError:
        trailing: Any = error.trailing_metadata() or ()
        answer = next((value for key, value in trailing if key == service.ERROR_KEY), None)
        told = errors.from_view(json.loads(answer)) if answer else None
        cls = type(told) if told else _BY_STATUS.get(error.code(), errors.CorralError)
        if cls is errors.Unauthorized and not self.door.token:
            place = f" in {self.door.home}" if self.door.local and self.door.home else ""
            return cls(
                f"There is a controller at {self.door.address}, but no token for it{place}. Set "
                f"{'CORRAL_HOME or ' if place else ''}CORRAL_TOKEN."
            )
        if told:
            return told
        if cls is errors.Unavailable and "parsing HTTP/2" in (error.details() or ""):
            return cls(
                f"{self.door.address} does not speak gRPC. Give the gRPC address of the "
                "controller (by default its port is 50051); `corral status` shows both."
            )
        if cls is errors.Unavailable and "CERTIFICATE_VERIFY_FAILED" in (error.details() or ""):
            return errors.WrongCertificate(
                f"Who answers at {self.door.address} shows a certificate that is not the one known "
                "here. `corral invite --client NAME` on the controller's machine makes a string; "
                "`corral login` with it here makes the certificate known."
            )
        if cls is errors.Unavailable:
            what = "Lost the controller" if self.met else "No controller"
            return cls(f"{what} at {self.door.address}. Start one with `corral up`.")
        if cls is errors.Unauthorized:
            return cls(
                f"The controller at {self.door.address} does not accept this token. Give the one "
                "in its home as CORRAL_TOKEN."
            )
        return cls(f"The controller at {self.door.address} answered: {error.details()}.")


class ClientCalls:
    """Root of the groups of calls that a client has."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection


async def _pieces(data: bytes, progress: Progress) -> AsyncIterator[bytes]:
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]
        progress.advance(CHUNK_BYTES)
