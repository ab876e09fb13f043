"""Where the bytes of artifacts are: with the controller, in the shared root, or in the bucket.

Beyond the controller's own disk it only learns name, size and digest. It believes the size after
asking, and whoever fetches an artifact proves the digest. A job's artifacts are looked up by name
once, a slice at a time, and remembered for whoever goes through them.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from typing import BinaryIO, Literal, NamedTuple, cast

from corral.controller.files.assets import Assets
from corral.controller.files.blobs import Blobs
from corral.controller.files.bucket import PUT_LIMIT
from corral.controller.store import Store
from corral.core.errors import (
    ArtifactTooLarge,
    BlobNotFound,
    InvalidSettings,
    StorageFailed,
)
from corral.core.events import ArtifactStored
from corral.core.job import JobId
from corral.shared_root import NotInRoot

CHUNK = 1 << 20
SHARED = "shared:"
SEEN_S = 5.0
"""How long a file may take to be seen here that was written to the shared root elsewhere."""
SLICE = 200
"""Records that are read before others get their turn."""
KEPT = 100_000
"""Names of artifacts that stay in memory; those of the job that was asked for last always do."""


class Artifacts:
    def __init__(
        self,
        blobs: Blobs,
        assets: Assets,
        *,
        limit: int,
        where: Literal["auto", "controller", "root", "bucket"] = "auto",
    ) -> None:
        self._blobs, self._limit = blobs, limit
        self._root, self._bucket = assets.root, assets.bucket
        if where == "auto":
            where = "bucket" if self._bucket else "root" if self._root else "controller"
        if (where == "bucket" and not self._bucket) or (where == "root" and not self._root):
            raise InvalidSettings(
                f"assets.artifacts is {where}, and assets.{where} is not set. Set it, or leave "
                "assets.artifacts out."
            )
        self.where: Literal["", "root", "bucket"] = "" if where == "controller" else where

    async def place(self, job: JobId, attempt: int, name: str, size: int) -> str:
        """A URL for the bytes of an artifact, good for a short time; nothing for here."""
        if size > self._limit:
            raise ArtifactTooLarge(f"More than artifact_limit = {self._limit:,} bytes.")
        if self._bucket is None or self.where != "bucket" or size > PUT_LIMIT:
            return ""
        return await self._bucket.sign("PUT", _key(job, attempt, name))

    async def stored(self, job: JobId, attempt: int, name: str, size: int) -> str:
        """The URI of an artifact that was just stored, once it is seen with this size."""
        key = _key(job, attempt, name)
        if self.where == "bucket" and self._bucket is not None:
            if await self._bucket.size(key) == size:
                return f"{self._bucket.uri}/{key}"
        elif self.where == "root":
            if size > self._limit:
                raise ArtifactTooLarge(f"More than artifact_limit = {self._limit:,} bytes.")
            if await self._seen(key, size):
                return f"{SHARED}{key}"
        raise StorageFailed(
            f"The artifact {name!r} of job {job} was not found with {size:,} bytes where it was "
            "stored. See that assets.root and assets.bucket mean the same place everywhere."
        )

    async def _seen(self, key: str, size: int) -> bool:
        """A file system over the network shows a new file a moment later."""
        deadline = asyncio.get_running_loop().time() + SEEN_S
        while True:
            try:
                with await asyncio.to_thread(self._root.open, key) as file:
                    if file.seek(0, 2) == size:
                        return True
            except (NotInRoot, OSError):
                pass
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(0.1)

    async def read(
        self, kept: ArtifactStored, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        end = kept.size if end is None else end
        if start >= end:
            return
        if kept.uri.startswith("s3://"):
            async for piece in self._from_store(kept, start, end):
                yield piece
            return
        with self._open(kept) as file:
            file.seek(start)
            while start < end:
                piece = await asyncio.to_thread(file.read, min(CHUNK, end - start))
                if not piece:
                    return
                start += len(piece)
                self._blobs.sent += len(piece)
                yield piece

    def check(self, kept: ArtifactStored) -> None:
        """BlobNotFound or ArtifactPruned before anything of an answer is sent."""
        if not kept.uri.startswith("s3://"):
            self._open(kept).close()

    def _open(self, kept: ArtifactStored) -> BinaryIO:
        if not kept.uri:
            return self._blobs.open_path(kept.file_sha256).open("rb")
        try:
            return self._root.open(kept.uri.removeprefix(SHARED))
        except NotInRoot as error:
            raise _gone(kept) from error

    async def _from_store(self, kept: ArtifactStored, start: int, end: int) -> AsyncIterator[bytes]:
        prefix = f"{self._bucket.uri}/" if self._bucket else ""
        if self._bucket is None or not kept.uri.startswith(prefix):
            raise _gone(kept)
        try:
            async for piece in self._bucket.read(kept.uri.removeprefix(prefix), start, end):
                self._blobs.sent += len(piece)
                yield piece
        except FileNotFoundError:
            raise _gone(kept) from None


def _key(job: JobId, attempt: int, name: str) -> str:
    return f"artifacts/{job}/{attempt}/{name}"


def _gone(kept: ArtifactStored) -> BlobNotFound:
    return BlobNotFound(
        f"The artifact {kept.name!r} is not at {kept.uri} (any more), or that place is not set "
        "here: see assets.root and assets.bucket.",
        job_id=kept.job,
    )


class _Found(NamedTuple):
    """What one job had stored up to a record of the journal."""

    last_seq: int
    seqs: dict[str, int]
    """By name: the record that stored it last."""
    order: Sequence[int] = ()


class ArtifactIndex:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._found: OrderedDict[JobId, _Found] = OrderedDict()
        self._looking: dict[JobId, asyncio.Task[_Found]] = {}

    async def find(self, job: JobId, name: str) -> ArtifactStored:
        """The artifact that was stored last under this name."""
        seq = (await self._up_to_now(job)).seqs.get(name)
        if seq is None:
            raise BlobNotFound(
                f"Job {job} has nothing named {name[:200]!r}. `corral get {job}` fetches what it "
                "has.",
                job_id=job,
            )
        return cast("ArtifactStored", self._store.journal.record(seq).fact())

    async def page(self, job: JobId, *, after: str = "", limit: int) -> list[ArtifactStored]:
        """In the order in which they were stored, behind the one of this name."""
        found = await self._up_to_now(job)
        if after and after not in found.seqs:
            await self.find(job, after)
        start = bisect_right(found.order, found.seqs[after]) if after else 0
        stored = []
        for number, seq in enumerate(found.order[start : start + limit], 1):
            stored.append(cast("ArtifactStored", self._store.journal.record(seq).fact()))
            if not number % SLICE:
                await asyncio.sleep(0)
        return stored

    async def _up_to_now(self, job: JobId) -> _Found:
        last_seq = self._store.head(job).last_seq
        while (found := self._found.get(job)) is None or found.last_seq < last_seq:
            looking = self._looking.get(job)
            if looking is None:
                looking = asyncio.create_task(self._look(job, found or _Found(0, {}), last_seq))
                self._looking[job] = looking
                looking.add_done_callback(lambda _: self._looking.pop(job))
            await asyncio.shield(looking)
        self._found.move_to_end(job)
        return found

    async def _look(self, job: JobId, known: _Found, last_seq: int) -> _Found:
        """Reads what lies behind what is known, the newest first."""
        newer: dict[str, int] = {}
        records = self._store.journal.backwards(last_seq, known.last_seq)
        while some := list(islice(records, SLICE)):
            for record in some:
                if record.kind == ArtifactStored.__name__:
                    fact = cast("ArtifactStored", record.fact())
                    newer.setdefault(fact.name, record.seq)
            await asyncio.sleep(0)
        seqs = {**known.seqs, **newer}
        self._found[job] = found = _Found(last_seq, seqs, sorted(seqs.values()))
        self._found.move_to_end(job)
        while len(self._found) > 1 and sum(len(one.order) for one in self._found.values()) > KEPT:
            self._found.popitem(last=False)
        return found
