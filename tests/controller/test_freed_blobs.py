"""Bytes that came for one job are freed at once, unless anybody else came to count on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from corral.controller.files.blobs import Blobs
from corral.core.job import Blob

DATA = b"weights"


async def came(blobs: Blobs, owner: str = "") -> Blob:
    async def pieces() -> AsyncIterator[bytes]:
        yield DATA

    return await blobs.put(pieces(), limit=100, owner=owner)


async def test_its_owner_frees_what_nobody_else_counts_on(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    sha256 = (await came(blobs, "one")).sha256
    assert blobs.free(sha256, "another") is None
    path = blobs.free(sha256, "one")
    assert path is not None
    assert path.read_bytes() == DATA
    assert not blobs.has(sha256)


async def asked_for(blobs: Blobs) -> None:
    assert blobs.has(Blob.of(DATA, inline=False).sha256)


async def stored(blobs: Blobs) -> None:
    await blobs.put_all([DATA])


async def of_another_job(blobs: Blobs) -> None:
    await came(blobs, "another")


async def uploaded(blobs: Blobs) -> None:
    await came(blobs)


@pytest.mark.parametrize("count_on", [asked_for, stored, of_another_job, uploaded])
async def test_what_others_count_on_stays(
    tmp_path: Path, count_on: Callable[[Blobs], Awaitable[None]]
) -> None:
    blobs = Blobs(tmp_path)
    sha256 = (await came(blobs, "one")).sha256
    await count_on(blobs)
    assert blobs.free(sha256, "one") is None
    assert blobs.free(sha256, "another") is None
    assert blobs.has(sha256)


async def test_what_was_there_before_stays(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    sha256 = (await came(blobs)).sha256
    await came(blobs, "one")
    assert blobs.free(sha256, "one") is None
    assert blobs.has(sha256)
