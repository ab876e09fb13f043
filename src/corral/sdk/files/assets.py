"""Input files: an asset by its digest, and putting files where jobs find them."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

from corral import settings
from corral.core.assets import check_input_names, inside_root, named_in_root
from corral.core.errors import InvalidJob, Unavailable
from corral.sdk.files.progress import Progress

if TYPE_CHECKING:
    from corral.contract import corral_pb2 as pb
    from corral.sdk.transport.connection import Connection

BLOCK = 1 << 19
BUCKET_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Asset:
    """A file that jobs may have as an input: `inputs={"data.csv": asset}`."""

    sha256: str
    size: int
    name: str
    path: str = ""
    """Where it lies in the shared root, for one that is read in place."""


def shared(path: str | os.PathLike[str]) -> Asset:
    """A file of the shared root by its place there, as `shared("checkpoints/base.safetensors")`.
    The controller finds its size and sha256 when a job names it."""
    known = settings.load().settings.assets
    inside = named_in_root(os.fspath(path), (known.root, *known.spellings))
    return Asset(sha256="", size=0, name=inside.rpartition("/")[2], path=inside)


def messages(inputs: Any) -> list[pb.Input]:
    """What `inputs` means on the wire, or an InvalidJob that says what is wrong with it."""
    from corral.contract import corral_pb2 as pb

    if not isinstance(inputs, Mapping):
        raise InvalidJob(f"inputs is a mapping such as {{'data.csv': asset}}; got {inputs!r}.")
    for name, asset in inputs.items():
        if not isinstance(name, str) or not isinstance(asset, Asset):
            raise InvalidJob(
                f"inputs[{name!r}] is an asset, as client.put(path) returns it; got {asset!r}."
            )
    check_input_names(inputs)
    return [
        pb.Input(name=name, sha256=one.sha256, size=one.size, path=one.path)
        for name, one in sorted(inputs.items())
    ]


async def put(
    connection: Connection,
    path: str | os.PathLike[str],
    progress: Callable[[int], object] | None = None,
) -> Asset:
    """Hands a file over, unless the controller has it already."""
    from corral.contract import corral_pb2 as pb

    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"There is no file {os.fspath(path)!r} to put.")
    sha256, size = await asyncio.to_thread(_digest_of, file)
    root = settings.load(connection.door.home).settings.assets.root
    resolved = str(Path(root).expanduser().resolve()) if root else ""
    inside = inside_root(str(file.resolve()), resolved) or ""
    asked = pb.AssetRequest(sha256=sha256, size=size, path=inside)
    found = await connection.call("FindAsset", asked)
    if not found.known:
        with Progress(f"sending {file.name}", 0 if progress else size) as shown:
            told = progress or shown.advance
            if found.put_url:
                await asyncio.to_thread(_put_to_bucket, found.put_url, file, size, told)
                asked = pb.AssetRequest(sha256=sha256, size=size)
                found = await connection.call("FindAsset", asked)
                stored = sha256 if found.known and found.size == size else ""
            else:
                stored = await connection.put_file("PutAsset", lambda: _pieces(file, told))
        if stored != sha256:
            raise InvalidJob(f"{file} changed while it was put. Put it again when it is complete.")
    elif progress is not None:
        progress(size)
    return Asset(sha256=sha256, size=size, name=file.name, path=found.path)


def _digest_of(file: Path) -> tuple[str, int]:
    with file.open("rb") as body:
        return hashlib.file_digest(body, "sha256").hexdigest(), body.tell()


async def _pieces(file: Path, told: Callable[[int], object]) -> AsyncIterator[bytes]:
    with file.open("rb") as body:
        while block := await asyncio.to_thread(body.read, BLOCK):
            yield block
            told(len(block))


class _Told:
    """A file that tells how much of it was read."""

    def __init__(self, body: BinaryIO, told: Callable[[int], object]) -> None:
        self._body, self._told = body, told

    def read(self, size: int = -1) -> bytes:
        block = self._body.read(size)
        self._told(len(block))
        return block


def _put_to_bucket(url: str, file: Path, size: int, told: Callable[[int], object]) -> None:
    """To a URL that the controller signed. It opens the bucket for a while: nobody prints it."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    host = parts.hostname or ""
    try:
        with (
            closing(kind(parts.netloc, timeout=BUCKET_TIMEOUT_S)) as connection,
            file.open("rb") as body,
        ):
            target = f"{parts.path}?{parts.query}"
            connection.request("PUT", target, _Told(body, told), {"Content-Length": str(size)})
            status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(
            f"The bucket at {host} could not be reached ({type(error).__name__}). Put the file "
            "again when it can be."
        ) from None
    if status >= 300:
        raise Unavailable(f"The bucket at {host} did not take the file: it answered {status}.")
