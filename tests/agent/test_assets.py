"""Fetching input files: whole or not at all, once for all, and never other bytes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.agent.files.assets import AssetCache, _files
from corral.agent.inventory import GIB
from corral.core.job import Input
from corral.runtime.failures import AttemptFailed
from corral.runtime.files.downloads import Abandoned, Ticket
from corral.shared_root import SharedRoot
from tests.agent.asset_server import AssetServer, serving

DATA = os.urandom(1_000_000)
SHA256 = hashlib.sha256(DATA).hexdigest()
WANTED = Input("data", SHA256, len(DATA))


@pytest.fixture
def server() -> Iterator[AssetServer]:
    with serving(DATA) as made:
        yield made


def cache(folder: Path, *, limit: float = 10 * GIB, root: str = "", used: str = "") -> AssetCache:
    kept = {used} - {""}
    made = AssetCache(folder, limit_gb=limit / GIB, root=SharedRoot(root), in_use=lambda: kept)
    made.clear_leftovers()
    return made


async def fetch(
    assets: AssetCache, server: AssetServer, wanted: Input = WANTED, job: str = "j"
) -> str:
    ticket = Ticket(server.url, "", job, 1, f"token-{job}")
    return await assets.get(wanted, ticket, lambda: True, lambda have, size: None)


async def test_fetched_once_and_kept(tmp_path: Path, server: AssetServer) -> None:
    path = await fetch(cache(tmp_path), server)
    assert Path(path).read_bytes() == DATA
    assert Path(path).stat().st_mode & 0o222 == 0
    await fetch(cache(tmp_path), server)  # an agent that was started again
    assert server.asked == [(f"/attempts/j/1/assets/{SHA256}", "Bearer token-j", None)]


async def test_an_empty_file(tmp_path: Path, server: AssetServer) -> None:
    empty = Input("empty", hashlib.sha256(b"").hexdigest(), 0)
    assert Path(await fetch(cache(tmp_path), server, empty)).read_bytes() == b""


async def test_a_cut_goes_on_where_it_was(tmp_path: Path, server: AssetServer) -> None:
    server.cut_after = [300_000, 300_000]
    assert Path(await fetch(cache(tmp_path), server)).read_bytes() == DATA
    assert [asked[2] for asked in server.asked] == [None, "bytes=300000-", "bytes=600000-"]


async def test_what_an_agent_left_half_fetched_is_gone_on_with(
    tmp_path: Path, server: AssetServer
) -> None:
    cache(tmp_path)
    (tmp_path / "parts" / SHA256).write_bytes(DATA[:400_000])
    assert Path(await fetch(cache(tmp_path), server)).read_bytes() == DATA
    assert [asked[2] for asked in server.asked] == ["bytes=400000-"]


async def test_a_server_without_ranges_starts_over(tmp_path: Path, server: AssetServer) -> None:
    server.ranges, server.cut_after = False, [300_000]
    assert Path(await fetch(cache(tmp_path), server)).read_bytes() == DATA


async def test_a_wrong_beginning_is_not_completed_into_a_wrong_file(
    tmp_path: Path, server: AssetServer
) -> None:
    cache(tmp_path)
    (tmp_path / "parts" / SHA256).write_bytes(b"x" * 400_000)
    assert Path(await fetch(cache(tmp_path), server)).read_bytes() == DATA


async def test_corrupt_once_is_fetched_again_and_twice_is_a_failure(
    tmp_path: Path, server: AssetServer
) -> None:
    server.spoilt = 1
    assert Path(await fetch(cache(tmp_path / "a"), server)).read_bytes() == DATA
    server.spoilt = 2
    with pytest.raises(AttemptFailed) as failed:
        await fetch(cache(tmp_path / "b"), server)
    assert failed.value.failure["code"] == "asset_corrupt"
    assert not (tmp_path / "b" / SHA256).exists()


async def test_missing_is_a_failure(tmp_path: Path, server: AssetServer) -> None:
    server.statuses = [404]
    with pytest.raises(AttemptFailed) as failed:
        await fetch(cache(tmp_path), server)
    assert failed.value.failure["code"] == "asset_missing"


async def test_what_was_changed_on_disk_is_fetched_again(
    tmp_path: Path, server: AssetServer
) -> None:
    assets = cache(tmp_path)
    path = Path(await fetch(assets, server))
    status = path.stat()
    path.chmod(0o644)
    path.write_bytes(DATA[:-1] + bytes([DATA[-1] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a job would hide it
    assert Path(await fetch(assets, server)).read_bytes() == DATA
    assert len(server.asked) == 2


async def test_many_who_want_it_share_one_download(tmp_path: Path, server: AssetServer) -> None:
    server.gate = threading.Event()
    assets = cache(tmp_path)
    waiting = [asyncio.create_task(fetch(assets, server, job=f"j{n}")) for n in range(20)]
    await asyncio.to_thread(server.came.wait, 10)
    server.gate.set()
    assert len({await one for one in waiting}) == 1
    assert len(server.asked) == 1


async def test_an_attempt_that_is_over_leaves_the_download_to_the_next(
    tmp_path: Path, server: AssetServer
) -> None:
    server.gate, server.statuses = threading.Event(), [409]
    assets = cache(tmp_path)
    first = asyncio.create_task(fetch(assets, server, job="over"))
    await asyncio.to_thread(server.came.wait, 10)
    second = asyncio.create_task(fetch(assets, server, job="lives"))
    await asyncio.sleep(0)
    server.gate.set()
    assert Path(await second).read_bytes() == DATA
    await first
    assert [asked[1] for asked in server.asked] == ["Bearer token-over", "Bearer token-lives"]


async def test_nobody_wants_it_any_more(tmp_path: Path, server: AssetServer) -> None:
    ticket = Ticket(server.url, "", "j", 1, "t")
    with pytest.raises(Abandoned):
        await cache(tmp_path).get(WANTED, ticket, lambda: False, lambda have, size: None)
    assert server.asked == []


async def test_a_leaving_agent_does_not_wait_for_a_stalled_download(
    tmp_path: Path, server: AssetServer
) -> None:
    server.gate = threading.Event()
    assets = cache(tmp_path)
    waiting = asyncio.create_task(fetch(assets, server))
    await asyncio.to_thread(server.came.wait, 10)
    async with asyncio.timeout(60):
        waiting.cancel()
        await assets.close()
    server.gate.set()


async def test_the_longest_unused_go_first_and_what_is_used_stays(tmp_path: Path) -> None:
    names: dict[str, str] = {}
    assets = cache(tmp_path, limit=2_500_000)
    for word in ("one", "two", "three"):
        data = word.encode() * (1_000_000 // len(word))
        wanted = Input(word, hashlib.sha256(data).hexdigest(), len(data))
        names[word] = wanted.sha256
        with serving(data) as server:
            await fetch(assets, server, wanted)
    assert {path.name for path in tmp_path.iterdir()} == {names["two"], names["three"], "parts"}
    with serving(DATA) as server:
        await fetch(cache(tmp_path, limit=2_500_000, used=names["two"]), server)
    assert {path.name for path in tmp_path.iterdir()} == {names["two"], SHA256, "parts"}


async def test_a_store_that_refuses_is_asked_again_with_a_fresh_url(
    tmp_path: Path, server: AssetServer
) -> None:
    with serving(b"") as controller:
        controller.redirect = f"{server.url}/bucket/key?signature=1"
        server.statuses = [403, 200, 403]
        server.cut_after = [500_000]
        assert Path(await fetch(cache(tmp_path), controller)).read_bytes() == DATA
        assert len(controller.asked) == 4
    assert {asked[1] for asked in server.asked} == {None}, "the token is the controller's alone"
    assert [asked[2] for asked in server.asked] == [None, None, "bytes=500000-", "bytes=500000-"]


async def test_a_store_that_always_refuses_is_a_failure_without_the_url(
    tmp_path: Path, server: AssetServer
) -> None:
    with serving(b"") as controller:
        controller.redirect = f"{server.url}/bucket/key?signature=opens-the-door"
        server.statuses = [403] * 100
        with pytest.raises(AttemptFailed) as failed:
            await fetch(cache(tmp_path), controller)
    assert failed.value.failure["code"] == "transfer_failed"
    assert "opens-the-door" not in failed.value.failure["message"]


# --- the shared root -----------------------------------------------------------------------------


async def test_a_file_of_the_shared_root_is_read_in_place(
    tmp_path: Path, server: AssetServer
) -> None:
    root = tmp_path / "root"
    (root / "models").mkdir(parents=True)
    (root / "models" / "base").write_bytes(DATA)
    wanted = Input("base", SHA256, len(DATA), "models/base")
    found = await fetch(cache(tmp_path / "cache", root=str(root)), server, wanted)
    assert found == str(root / "models" / "base")
    assert server.asked == []


async def test_a_worker_without_the_root_fetches_it(tmp_path: Path, server: AssetServer) -> None:
    wanted = Input("base", SHA256, len(DATA), "models/base")
    assert Path(await fetch(cache(tmp_path), server, wanted)).read_bytes() == DATA


@pytest.mark.parametrize(
    ("kind", "code"),
    [("other", "asset_corrupt"), ("none", "asset_missing"), ("link", "asset_missing"),
     ("folder", "asset_missing")],
)  # fmt: skip
async def test_what_the_shared_root_has_instead_is_a_failure(
    tmp_path: Path, server: AssetServer, kind: str, code: str
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    outside = tmp_path / "outside"
    outside.write_bytes(DATA)
    if kind == "other":
        (root / "base").write_bytes(DATA[:-1] + b"x")
    elif kind == "link":
        (root / "base").symlink_to(outside)
    elif kind == "folder":
        (root / "base").mkdir()
    wanted = Input("base", SHA256, len(DATA), "base")
    with pytest.raises(AttemptFailed) as failed:
        await fetch(cache(tmp_path / "cache", root=str(root)), server, wanted)
    assert failed.value.failure["code"] == code
    assert server.asked == []


async def test_a_file_that_changes_in_the_root_is_counted_again(
    tmp_path: Path, server: AssetServer
) -> None:
    (tmp_path / "base").write_bytes(DATA)
    os.utime(tmp_path / "base", (1, 1))
    assets = cache(tmp_path / "cache", root=str(tmp_path))
    wanted = Input("base", SHA256, len(DATA), "base")
    await fetch(assets, server, wanted)
    (tmp_path / "base").write_bytes(DATA[::-1])
    os.utime(tmp_path / "base", (1, 1))
    with pytest.raises(AttemptFailed):
        await fetch(assets, server, wanted)


def test_files_that_go_while_they_are_counted(tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(b"123")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert [(path.name, status.st_size) for path, status in _files(tmp_path)] == [("here", 3)]
