"""Bytes between a job and the controller, over HTTP with a token good for one attempt alone.

The controller may be away or restarting, so connection errors and 5xx are tried again for as long
as the worker may be away from it, with growing pauses; a 4xx is an answer. Artifacts may go to a
bucket by a signed URL or into the shared root: then the controller is only told of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import IO, Any, TypeVar
from urllib.parse import quote, urlsplit

from corral.runtime.failures import TransferFailed

T = TypeVar("T")
RETRY_FOR_S = 120.0
"""The usual grace of a worker and something more; where the grace is longer, so is this."""
SOCKET_TIMEOUT_S = 60.0
IDLE_S = 5.0
"""So long the connection of one attempt is good for the next one of its process."""
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 5.0
BLOCK = 1 << 18
BUCKET_REFUSALS = 3
"""So often in a row a bucket may refuse a fresh URL."""
BUNDLE = 1 << 20
"""Files up to this size together travel in one request."""


ABOUT_THE_ATTEMPT = (401, 403, 409)
"""Refusals that do not speak of the bytes: the attempt is over, or is not ours."""


class NotThere(TransferFailed):
    """The controller has nothing under this name."""


class TransferRefused(TransferFailed):
    """The controller does not take this: too large, or under no such name. It never will."""


class Transfer:
    """One attempt's way to its controller; the connection is kept between requests."""

    def __init__(
        self,
        url: str,
        token: str,
        job: str,
        attempt: int,
        *,
        certificate: str = "",
        artifacts: str = "",
        patience_s: float = RETRY_FOR_S,
        before: Transfer | None = None,
    ) -> None:
        """`before` is that of an attempt that is over; its connection is gone on with."""
        self._url = url
        self._root = f"{urlsplit(url).path.rstrip('/')}/attempts/{quote(job, safe='')}/{attempt}"
        self._headers = {"Authorization": f"Bearer {token}"}
        self._artifacts = artifacts
        """Where artifacts go: `bucket`, a folder of the shared root, or nothing: the controller."""
        self._own = f"{job}/{attempt}"
        self._certificate = certificate
        """A file with the only certificate that the controller may show."""
        self._patience_s = patience_s
        self._connection: http.client.HTTPConnection | None = None
        self._used_at = time.monotonic()
        if before is not None:
            self._take_over(before)

    def _take_over(self, before: Transfer) -> None:
        """What was idle for long the controller is about to close, or has closed."""
        same = (before._url, before._certificate) == (self._url, self._certificate)
        if same and self._used_at - before._used_at < IDLE_S:
            self._connection, before._connection = before._connection, None
        before.close()

    def package(self, sha256: str, into: IO[bytes]) -> None:
        """Fetch one package of the job document into a file."""
        self._fetch(f"packages/{sha256}", sha256, into)

    def package_bytes(self, sha256: str) -> bytes:
        held = io.BytesIO()
        self.package(sha256, held)
        return held.getvalue()

    def checkpoint(self, sha256: str, into: IO[bytes]) -> None:
        """Fetch the job's last checkpoint; NotThere when it has none."""
        self._fetch("checkpoint", sha256, into)

    def put_result(self, data: bytes) -> tuple[str, int]:
        return self._store("result", io.BytesIO(data), len(data))

    def put_checkpoint(self, body: IO[bytes], size: int) -> tuple[str, int]:
        return self._store("checkpoint", body, size)

    def put_artifact(self, name: str, body: IO[bytes], size: int) -> tuple[str, int]:
        path = f"artifacts/{quote(name)}"
        if not self._artifacts:
            return self._store(path, body, size)

        def url() -> str:
            if not (found := str(self._tell(path, {"size": size})["put_url"])):
                raise _NoPlace
            return found

        try:
            if self._artifacts == "bucket":
                sha256 = self._persist(path, lambda: _to_bucket(path, url, body, size))
            else:
                folder = f"{self._artifacts}/{self._own}"
                sha256 = _to_root(folder, name, body, size)
        except _NoPlace:
            return self._store(path, body, size)  # too large for a bucket, or a root not ours
        except EOFError as error:
            raise TransferFailed(f"{path}: {error}.") from None
        self._persist(path, lambda: self._tell(path, {"size": size, "sha256": sha256}))
        return sha256, size

    def put_artifacts(self, files: list[tuple[str, bytes]]) -> list[tuple[str, int]]:
        """Several at once: where they are small and the controller keeps them, in one request."""
        if not self._artifacts and sum(len(data) for _, data in files) <= BUNDLE:
            try:
                return self._put_bundle(files)
            except (NotThere, TransferRefused):
                pass  # an older controller, or a narrow one, takes one after the other
        return [self.put_artifact(name, io.BytesIO(data), len(data)) for name, data in files]

    def _put_bundle(self, files: list[tuple[str, bytes]]) -> list[tuple[str, int]]:
        listed = [{"name": name, "size": len(data)} for name, data in files]
        body = b"".join([json.dumps(listed).encode(), b"\n", *(data for _, data in files)])

        def send() -> list[tuple[str, int]]:
            answer = json.loads(self._request("PUT", "bundle", body).read())
            stored = [(one["sha256"], one["size"]) for one in answer]
            if stored != [(hashlib.sha256(data).hexdigest(), len(data)) for _, data in files]:
                raise TransferFailed("The controller stored something else than was sent.")
            return stored

        return self._persist("bundle", send)

    def _tell(self, path: str, told: dict[str, Any]) -> Any:
        body = json.dumps(told, ensure_ascii=False).encode()
        return json.loads(self._request("POST", path, body).read())

    def _request(
        self, method: str, path: str, body: bytes | None = None
    ) -> http.client.HTTPResponse:
        connection = self._connected()
        connection.request(method, f"{self._root}/{path}", body, self._headers)
        answer = connection.getresponse()
        check_answer(answer, path)
        return answer

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _fetch(self, path: str, sha256: str, into: IO[bytes]) -> None:
        def receive() -> None:
            answer = self._request("GET", path)
            into.seek(0)
            into.truncate()
            digest = hashlib.sha256()
            while block := answer.read(BLOCK):
                digest.update(block)
                into.write(block)
            if answer.length:  # Closed before all of it came; http.client does not mind.
                raise http.client.IncompleteRead(b"", answer.length)
            if digest.hexdigest() != sha256:
                raise TransferFailed(
                    f"What the controller sent for {path} is not what was asked for: its sha256 is "
                    f"{digest.hexdigest()}, expected {sha256}."
                )

        self._persist(path, receive)

    def _store(self, path: str, body: IO[bytes], size: int) -> tuple[str, int]:
        def send() -> tuple[str, int]:
            connection = self._connected()
            try:
                digest = _put(connection, f"{self._root}/{path}", self._headers, body, size)
            except (BrokenPipeError, ConnectionResetError):
                # The controller may have refused before it read everything: its answer counts.
                check_answer(connection.getresponse(), path)
                raise
            except EOFError:
                raise TransferFailed(f"{path} became shorter while it was uploaded.") from None
            answer = connection.getresponse()
            check_answer(answer, path)
            stored = json.loads(answer.read())
            if stored["sha256"] != digest or stored["size"] != size:
                raise TransferFailed(
                    f"The controller stored something else than was sent as {path}."
                )
            return stored["sha256"], size

        return self._persist(path, send)

    def _persist(self, path: str, step: Callable[[], T]) -> T:
        until = time.monotonic() + self._patience_s
        wait_s = FIRST_WAIT_S
        while True:
            try:
                found = step()
                self._used_at = time.monotonic()
                return found
            except TransferFailed:
                self.close()
                raise
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                self.close()
                if time.monotonic() + wait_s > until:
                    raise TransferFailed(
                        f"The controller could not be reached for {path} within "
                        f"{self._patience_s:g} s: {error or type(error).__name__}."
                    ) from error
            # Everybody else is waiting for the same controller: not all at once.
            time.sleep(wait_s * (0.5 + os.urandom(1)[0] / 510))
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            self._connection = connection_to(self._url, self._certificate, SOCKET_TIMEOUT_S)
        return self._connection


def connection_to(url: str, certificate: str, timeout_s: float) -> http.client.HTTPConnection:
    """With a certificate, whatever the controller is called there: it is known by that."""
    parts = urlsplit(url)
    if parts.scheme != "https":
        return http.client.HTTPConnection(parts.netloc, timeout=timeout_s)
    import ssl

    if certificate:
        # The default context of Python 3.13 refuses certificates that homes have long had.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cafile=certificate)
    else:
        context = ssl.create_default_context()
    return http.client.HTTPSConnection(parts.netloc, timeout=timeout_s, context=context)


class _TryAgain(http.client.HTTPException):
    """The controller could not take it now."""


def check_answer(answer: http.client.HTTPResponse, path: str) -> None:
    if answer.status < 300:
        return
    reason = _reason(answer)
    if answer.status >= 500 or answer.status == 408:  # 408: this time it came too slowly
        raise _TryAgain(f"{answer.status} {reason}")
    kind = TransferFailed if answer.status in ABOUT_THE_ATTEMPT else TransferRefused
    if answer.status in (404, 405):
        kind = NotThere
    raise kind(f"The controller refused {path}: {answer.status} {reason}.")


def _reason(answer: http.client.HTTPResponse) -> str:
    """The sentence of our own error documents, or the plain status line."""
    try:
        message = json.loads(answer.read(BLOCK))["error"]["message"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return answer.reason
    return str(message).rstrip(".")


class _NoPlace(Exception):
    """It cannot go there from here; the controller takes it."""


def _to_bucket(path: str, url: Callable[[], str], body: IO[bytes], size: int) -> str:
    """Sends exactly the announced size to a URL that was asked for just now; the sha256. A URL
    may have expired on the way, so a refusal is met with a fresh one."""
    for _ in range(BUCKET_REFUSALS):
        place = url()
        parts = urlsplit(place)
        with contextlib.closing(connection_to(place, "", SOCKET_TIMEOUT_S)) as bucket:
            digest = _put(bucket, f"{parts.path}?{parts.query}", {}, body, size)
            status = bucket.getresponse().status
        if status < 300:
            return digest
        if status >= 500 or status in (408, 429):
            raise http.client.HTTPException(f"The bucket answered {status}")
    raise TransferFailed(f"{path} could not be stored: the bucket answered {status}.")


def _put(
    connection: http.client.HTTPConnection,
    target: str,
    headers: dict[str, str],
    body: IO[bytes],
    size: int,
) -> str:
    """Sends a request with exactly the announced size; its sha256."""
    digest = hashlib.sha256()

    def hashed() -> Iterator[bytes]:
        for block in _blocks(body, size):
            digest.update(block)
            yield block

    connection.request("PUT", target, hashed(), {**headers, "Content-Length": str(size)})
    return digest.hexdigest()


def _blocks(body: IO[bytes], size: int) -> Iterator[bytes]:
    """Not more, also of a file that somebody still writes to."""
    body.seek(0)
    while size:
        block = body.read(min(BLOCK, size))
        if not block:
            raise EOFError("it became shorter while it was uploaded")
        size -= len(block)
        yield block


def _to_root(folder: str, name: str, body: IO[bytes], size: int) -> str:
    """Writes a file below a folder of the shared root, whole or not at all; the sha256."""
    target = os.path.join(folder, *name.split("/"))
    digest = hashlib.sha256()
    partial = f"{target}.{os.getpid()}.part"
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(partial, "wb") as file:
            for block in _blocks(body, size):
                digest.update(block)
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
        _sync_names(target, folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise _NoPlace(str(error)) from error
    return digest.hexdigest()


def _sync_names(target: str, folder: str) -> None:
    """The folders that a new file's path goes through, so that its name stays as well."""
    place = os.path.dirname(target)
    while os.name != "nt":
        fd = os.open(place, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        if len(place) <= len(folder):
            return
        place = os.path.dirname(place)
