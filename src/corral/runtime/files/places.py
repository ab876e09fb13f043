"""Artifacts that go elsewhere than to the controller: to a bucket by a signed URL, or into the
shared root. The controller is only told name, size and sha256.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import ssl
from collections.abc import Callable
from typing import IO, Any
from urllib.parse import urlsplit

BLOCK = 1 << 18
TIMEOUT_S = 60.0
REFUSALS = 3
"""So often in a row a bucket may refuse a fresh URL."""


class BucketRefused(Exception):
    """The bucket did not take it."""


class NoPlace(Exception):
    """It cannot go there from here; the controller takes it."""


def to_bucket(url: Callable[[], str], body: IO[bytes], size: int) -> str:
    """Sends exactly the announced size to a URL that was asked for just now; the sha256. A URL
    may have expired on the way, so a refusal is met with a fresh one."""
    for _ in range(REFUSALS):
        status, digest = _send(urlsplit(url()), body, size)
        if status < 300:
            return digest
        if status >= 500 or status in (408, 429):
            raise http.client.HTTPException(f"The bucket answered {status}")
    raise BucketRefused(f"the bucket answered {status}")


def _send(place: Any, body: IO[bytes], size: int) -> tuple[int, str]:
    if place.scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            place.netloc, timeout=TIMEOUT_S, context=ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(place.netloc, timeout=TIMEOUT_S)
    try:
        connection.putrequest("PUT", f"{place.path}?{place.query}")
        connection.putheader("Content-Length", str(size))
        connection.endheaders()
        digest = hashlib.sha256()
        for block in _blocks(body, size):
            digest.update(block)
            connection.send(block)
        answer = connection.getresponse()
        answer.read()
        return answer.status, digest.hexdigest()
    finally:
        connection.close()


def to_root(folder: str, name: str, body: IO[bytes], size: int) -> str:
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
        raise NoPlace(str(error)) from error
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


def _blocks(body: IO[bytes], size: int) -> Any:
    body.seek(0)
    left = size
    while left:
        block = body.read(min(BLOCK, left))
        if not block:
            raise EOFError("it became shorter while it was uploaded")
        left -= len(block)
        yield block
