"""Input files: whether the controller has them, and where an attempt gets their bytes.

An asset lies among the blobs, in the bucket, or in the shared root. A document names it by digest
and size, and only the shared root besides by its place: so nothing later can change what runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, Sequence
from pathlib import Path
from typing import BinaryIO

from msgspec.structs import replace

from corral.controller.files.blobs import Blobs
from corral.controller.files.bucket import PUT_LIMIT, Bucket
from corral.core.assets import named_in_root
from corral.core.errors import AssetNotFound, AssetTooLarge, BlobNotFound, InvalidRequest
from corral.core.job import Blob, Input
from corral.core.text import is_digest
from corral.shared_root import NotInRoot, SharedRoot


class Assets:
    def __init__(
        self,
        blobs: Blobs,
        *,
        limit: int,
        root: SharedRoot | None = None,
        spellings: Sequence[str] = (),
        bucket: Bucket | None = None,
    ) -> None:
        self._blobs, self._limit = blobs, limit
        self._counting = asyncio.Semaphore(2)
        """Large files take long to count, and others need threads too."""
        self.root, self.bucket = root or SharedRoot(""), bucket
        self._spellings = (self.root.root, *spellings)

    async def settle(self, wanted: Input) -> Input:
        """The input with the size and digest that it has here; AssetNotFound where it has none."""
        if wanted.path:
            return await self._settle_shared(wanted)
        size = await self._size(wanted.sha256)
        if size is None:
            raise AssetNotFound(
                f"The input {wanted.name!r} names the asset {wanted.sha256}, which is not stored "
                "here (any more). Put it first: client.put(path), `corral put FILE` or PUT /assets."
            )
        return replace(wanted, size=size)

    async def _settle_shared(self, wanted: Input) -> Input:
        if not self.root:
            raise AssetNotFound(
                f"The input {wanted.name!r} names {wanted.path} in the shared root, and this "
                "controller has none. Set assets.root in its corral.yaml, or put the file."
            )
        path = named_in_root(wanted.path, self._spellings)
        try:
            async with self._counting:
                sha256, size = await asyncio.to_thread(self.root.digest, path)
        except NotInRoot as error:
            raise AssetNotFound(
                f"The input {wanted.name!r}: {error} `assets.root` says where the root is."
            ) from error
        if wanted.sha256 and wanted.sha256 != sha256:
            raise AssetNotFound(
                f"The input {wanted.name!r}: {wanted.path} in the shared root has changed; its "
                f"sha256 is {sha256}, not {wanted.sha256}. Put or name it again."
            )
        return replace(wanted, sha256=sha256, size=size, path=path)

    async def find(self, sha256: str, size: int, path: str) -> Input | None:
        """What is here already of a file that somebody is about to send."""
        if sha256 and not is_digest(sha256):
            raise InvalidRequest(f"{sha256[:80]!r} is no sha256: it has 64 digits of 0-9a-f.")
        if not sha256:
            if not path:
                raise InvalidRequest("Give the sha256 of a file, or its path in the shared root.")
            return await self.settle(Input(path, "", size, path))
        if path and self.root:
            with contextlib.suppress(AssetNotFound):
                return await self.settle(Input(path, sha256, size, path))
        found = await self._size(sha256)
        return None if found is None else Input(sha256, sha256, found)

    async def _size(self, sha256: str) -> int | None:
        if self._blobs.has(sha256):
            return self._blobs.size(sha256)
        return await self.bucket.size(_key(sha256)) if self.bucket else None

    async def source(self, named: Input) -> Path | BinaryIO | str:
        """A file to serve, or a URL that is good for a short time."""
        if self._blobs.has(named.sha256):
            return self._blobs.open_path(named.sha256)
        if named.path and self.root:
            # For a worker that does not have the root: it proves the bytes itself.
            try:
                return await asyncio.to_thread(self.root.open, named.path)
            except NotInRoot as error:
                raise BlobNotFound(str(error)) from error
        if self.bucket and await self.bucket.size(_key(named.sha256)) is not None:
            return await self.bucket.sign("GET", _key(named.sha256))
        raise BlobNotFound(f"The asset {named.sha256} is not stored here any more.")

    async def place(self, sha256: str, size: int) -> str:
        """Where to PUT the bytes of an asset, or nothing for here."""
        if size > self._limit:
            raise AssetTooLarge(f"{size:,} bytes; asset_limit allows {self._limit:,}.")
        if self.bucket is None or size > PUT_LIMIT:
            return ""
        return await self.bucket.sign("PUT", _key(sha256))

    async def put(self, chunks: AsyncIterable[bytes], *, expected: str | None = None) -> Blob:
        return await self._blobs.put(
            chunks,
            limit=self._limit,
            expected=expected,
            too_large=AssetTooLarge,
            setting="asset_limit",
        )


def _key(sha256: str) -> str:
    return f"assets/{sha256[:2]}/{sha256}"
