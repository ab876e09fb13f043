"""Packages, results, artifacts and checkpoints on the controller's disk, known by their sha256."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import secrets
import time
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from pathlib import Path

from corral.core.errors import (
    ArtifactPruned,
    BlobNotFound,
    InvalidJob,
    PackageTooLarge,
    StorageFailed,
    TooLarge,
)
from corral.core.job import Blob
from corral.core.text import is_digest
from corral.home import sync_folder

CHUNK = 1 << 20
NOTED = ".pruned"
"""An empty file with this ending says that the bytes were here, and were removed on purpose."""
COUNTED_ON_S = 3600.0
MOST_ALONE = 10_000
"""Of so many it is known who owns them; what is older goes with its job."""
AT_ONCE = 16
"""Files that are open while they wait for one sync."""
_NAME = re.compile(rf"[0-9a-f]{{64}}({re.escape(NOTED)})?")


class Blobs:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._incoming = folder / "incoming"
        self._incoming.mkdir(parents=True, exist_ok=True)
        for leftover in self._incoming.iterdir():
            leftover.unlink()
        self._settled: set[str] = set()
        """Folders whose names are known to be durable, but for those on their way in."""
        self._arriving: set[str] = set()
        self._asked_for: dict[str, float] = {}
        """When somebody last counted on these bytes: a job that names them may be on its way."""
        self._alone: dict[str, str] = {}
        """Bytes that came for one job and that nobody else counted on since, with that job."""
        self.received = self.sent = 0
        """Bytes since the start."""

    def path(self, sha256: str) -> Path:
        if not is_digest(sha256):
            raise BlobNotFound(f"{sha256[:80]!r} is no sha256.")
        return self.folder / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        """Whether the bytes are here to stay: no power cut could take back their name."""
        path = self.path(sha256)
        if sha256 in self._arriving or not path.exists():
            return False
        self._asked_for[sha256] = time.monotonic()
        self._alone.pop(sha256, None)
        if path.parent.name not in self._settled:
            sync_folder(path.parent)  # it may come from a process that died before doing so
            sync_folder(self.folder)
            self._settled.add(path.parent.name)
        return True

    def open_path(self, sha256: str) -> Path:
        path = self.path(sha256)
        if not path.exists():
            self.check_not_pruned(sha256)
            raise BlobNotFound(f"No bytes with sha256 {sha256} are stored here.")
        return path

    def size(self, sha256: str) -> int:
        return self.open_path(sha256).stat().st_size

    async def put_bytes(self, data: bytes) -> Blob:
        """Durable when this returns."""
        blob = Blob.of(data, inline=False)
        if not self.has(blob.sha256):
            await asyncio.to_thread(self._put, [(blob.sha256, data)])
            self.received += len(data)
        return blob

    async def put_all(self, parts: Sequence[bytes]) -> list[Blob]:
        """Small ones, which then wait for the disk together. Durable when this returns."""

        def put() -> list[Blob]:
            blobs = [Blob.of(data, inline=False) for data in parts]
            named = [(blob.sha256, data) for blob, data in zip(blobs, parts, strict=True)]
            for start in range(0, len(named), AT_ONCE):
                self._put(named[start : start + AT_ONCE])
            return blobs

        blobs = await asyncio.to_thread(put)
        self.received += sum(map(len, parts))
        return blobs

    def _put(self, parts: Sequence[tuple[str, bytes]]) -> None:
        """All are written before the first is synced, and all named before the first name is: what
        the disk has on its way then goes with the first sync, and the others find little to do."""
        incoming = {sha256: self._incoming / secrets.token_hex(8) for sha256, _ in parts}
        try:
            with contextlib.ExitStack() as stack:
                files = []
                for sha256, data in parts:
                    files.append(file := stack.enter_context(open(incoming[sha256], "wb")))
                    file.write(data)
                    file.flush()
                for file in files:
                    os.fsync(file.fileno())
            self._adopt(incoming)
            for sha256 in incoming:
                self._alone.pop(sha256, None)
        except OSError as error:
            for path in incoming.values():
                path.unlink(missing_ok=True)
            raise _not_stored(error) from error

    def _adopt(self, incoming: Mapping[str, Path]) -> None:
        """Files that are synced, by their sha256."""
        self._asked_for.update(dict.fromkeys(incoming, time.monotonic()))
        self._arriving.update(incoming)
        try:
            folders = {self._named(path, sha256) for sha256, path in incoming.items()}
            for folder in folders:
                sync_folder(folder)
            if new := {folder.name for folder in folders} - self._settled:
                sync_folder(self.folder)
                self._settled |= new
        finally:
            self._arriving.difference_update(incoming)

    def _named(self, incoming: Path, sha256: str) -> Path:
        final = self.path(sha256)
        try:
            os.replace(incoming, final)
        except FileNotFoundError:  # there are 256 folders; each is made once
            final.parent.mkdir(exist_ok=True)
            os.replace(incoming, final)
        return final.parent

    async def put(
        self,
        chunks: AsyncIterable[bytes],
        *,
        limit: int,
        expected: str | None = None,
        too_large: type[TooLarge] = PackageTooLarge,
        setting: str = "package_limit",
        owner: str = "",
    ) -> Blob:
        """Stores a stream; refuses it past `limit` or where its digest is not as `expected`. With
        an `owner`, a job, it can be freed as long as nobody else counts on these bytes."""
        incoming = self._incoming / secrets.token_hex(8)
        digest, size = hashlib.sha256(), 0
        try:
            with open(incoming, "wb") as file:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > limit:
                        raise too_large(f"More than {setting} = {limit:,} bytes.")
                    digest.update(chunk)
                    if len(chunk) < 1 << 16:
                        file.write(chunk)
                    else:
                        await asyncio.to_thread(file.write, chunk)
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
            sha256 = digest.hexdigest()
            if expected is not None and expected != sha256:
                raise InvalidJob(f"The bytes have sha256 {sha256}, not {expected} as announced.")
            self._note_owner(sha256, owner)
            await asyncio.to_thread(self._adopt, {sha256: incoming})
            self.received += size
        except OSError as error:
            raise _not_stored(error) from error
        finally:
            incoming.unlink(missing_ok=True)
        return Blob(sha256=sha256, size=size)

    def _note_owner(self, sha256: str, owner: str) -> None:
        known = sha256 in self._alone or sha256 in self._arriving or self.path(sha256).exists()
        self._alone.pop(sha256, None)
        if owner and not known:
            self._alone[sha256] = owner
            if len(self._alone) > MOST_ALONE:
                del self._alone[next(iter(self._alone))]

    async def read(self, sha256: str) -> AsyncIterator[bytes]:
        with open(self.open_path(sha256), "rb") as file:
            while chunk := await asyncio.to_thread(file.read, CHUNK):
                self.sent += len(chunk)
                yield chunk

    # --- removing what retention no longer keeps ---

    def note(self, sha256: str) -> Path:
        return self.path(sha256).with_name(f"{sha256}{NOTED}")

    def check_not_pruned(self, sha256: str) -> None:
        if self.note(sha256).exists():
            raise ArtifactPruned(
                f"The bytes with sha256 {sha256} were removed after the time or for the room that "
                "the settings retention.* give them. Run the job again to have them again."
            )

    def stored(self) -> dict[str, os.stat_result]:
        """Every blob with its size and age; any thread may ask."""
        found = {}
        for folder in self.folder.iterdir():
            if folder == self._incoming or not folder.is_dir():
                continue
            for entry in os.scandir(folder):
                # Whatever else somebody put there is not ours to remove.
                if _NAME.fullmatch(entry.name):
                    with contextlib.suppress(FileNotFoundError):
                        found[entry.name] = entry.stat()
        return found

    def free(self, sha256: str, owner: str) -> Path | None:
        """Takes what nobody but its owner ever counted on out of the way, as `remove` does."""
        if self._alone.get(sha256) != owner:
            return None
        del self._alone[sha256]
        self._asked_for.pop(sha256, None)
        return self.remove(sha256, noted=False)

    def remove(self, sha256: str, *, noted: bool) -> Path | None:
        """Takes a blob out of the way, unless somebody counts on it just now. `noted`: whoever asks
        for it later is told so. The room is free only once the caller unlinks the path."""
        asked_at = self._asked_for.get(sha256)
        if sha256 in self._arriving or (
            asked_at is not None and time.monotonic() - asked_at < COUNTED_ON_S
        ):
            return None
        self._asked_for.pop(sha256, None)
        note, gone = self.note(sha256), self._incoming / f"pruned-{secrets.token_hex(8)}"
        if noted:
            note.touch(mode=0o600)
        else:
            note.unlink(missing_ok=True)
        try:
            os.replace(self.path(sha256), gone)
        except FileNotFoundError:
            return None
        return gone


def _not_stored(error: OSError) -> StorageFailed:
    return StorageFailed(
        f"The bytes could not be stored ({error.strerror}). Free some space on the controller's "
        "disk, then send them again."
    )
