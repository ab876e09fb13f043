"""Input files of attempts on this worker: in the shared root, or fetched once and kept by digest.

The agent fetches, not the job: what several attempts read must not be written by any of them. It
opens no path that a job named; a digest and a place in the operator's root are all it is told.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from asyncio import Future
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import TypeVar, TypeVarTuple

import structlog

from corral.agent.inventory import GIB
from corral.core.job import Input
from corral.digests import Digests, stamp
from corral.home import make_folder, sync_folder
from corral.runtime.failures import AttemptFailed
from corral.runtime.files.downloads import Abandoned, Download, Ticket, no_room
from corral.shared_root import NotInRoot, SharedRoot

log = structlog.get_logger("corral.agent.files.assets")

PARTS = "parts"
PARTS_KEPT_S = 7 * 86_400.0
TOUCH_S = 60.0
"""How exactly the time of the last use is kept."""
SAID_S = 1.0
"""How often somebody who waits is told how far it is."""

THREADS = 8

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Wanted = Callable[[], bool]
Say = Callable[[int, int], None]


class AssetCache:
    def __init__(
        self, folder: Path, *, limit_gb: float, root: SharedRoot, in_use: Callable[[], set[str]]
    ) -> None:
        self.folder, self.root = folder, root
        self._parts = folder / PARTS
        self._limit, self._in_use = limit_gb * GIB, in_use
        self._digests = Digests()
        self._fetching: dict[str, _Fetch] = {}
        self._touched: dict[str, float] = {}
        # Of its own: a download that stalls must not keep others from a thread.
        self._threads = ThreadPoolExecutor(THREADS, "assets")

    def clear_leftovers(self) -> None:
        """What could not be whole, or is nobody's, goes; what was half fetched goes on later."""
        make_folder(self._parts)
        os.chmod(self.folder, 0o700)
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                if path != self._parts:
                    shutil.rmtree(path, ignore_errors=True)
            elif len(path.name) != 64 or path.is_symlink():
                path.unlink()
        for part in self._parts.iterdir():
            if time.time() - part.stat().st_mtime > PARTS_KEPT_S:
                part.unlink()

    def _in_thread(self, call: Callable[[*Ts], T], *args: *Ts) -> Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    async def get(self, wanted: Input, ticket: Ticket, alive: Wanted, say: Say) -> str:
        """Where the file is, proven to be the one that was named; AttemptFailed where it is not."""
        if wanted.path and self.root:
            return await self._in_thread(self._in_root, wanted)
        if kept := self.kept(wanted.sha256):
            return kept
        path = self.folder / wanted.sha256
        fetch = self._fetching.get(wanted.sha256)
        if fetch is None:
            fetch = self._fetching[wanted.sha256] = _Fetch(wanted, self._parts)
            fetch.task = asyncio.create_task(self._fetch(fetch, path))
            fetch.task.add_done_callback(_heard)
        fetch.tickets[ticket] = alive
        while True:
            done, _ = await asyncio.wait([fetch.task], timeout=SAID_S)
            if done:
                break
            if not alive():
                if not fetch.living():
                    fetch.download.stop()
                raise Abandoned
            say(fetch.download.have, wanted.size)
        try:
            fetch.task.result()
        except Abandoned:
            if not alive():
                raise
            return await self.get(wanted, ticket, alive, say)  # it joined just as others left
        return str(path)

    def kept(self, sha256: str) -> str:
        """Where it is, if it was proven before; empty where it has to be looked at or fetched."""
        path = self.folder / sha256
        if self._digests.known(str(path)) != sha256:
            return ""
        if time.monotonic() - self._touched.get(sha256, 0.0) > TOUCH_S:
            self._touch(path, sha256)
        return str(path)

    def _in_root(self, wanted: Input) -> str:
        try:
            sha256, size = self.root.digest(wanted.path)
            if (sha256, size) == (wanted.sha256, wanted.size):
                return self.root.locate(wanted.path)
        except NotInRoot as error:
            raise AttemptFailed(
                "asset_missing",
                f"{error} On this worker the root is {self.root.root} (assets.root).",
            ) from error
        raise AttemptFailed(
            "asset_corrupt",
            f"{wanted.path} in this worker's shared root is another file than the job names: its "
            f"sha256 is {sha256}, not {wanted.sha256}.",
        )

    def _is_whole(self, path: Path, wanted: Input) -> bool:
        """Whether it is here, and its bytes are the right ones. Broken ones are fetched again.
        Called for a digest by one task at a time: marking its use changes the file's stamp."""
        try:
            if self._digests.of(str(path)) == (wanted.sha256, wanted.size):
                self._touch(path, wanted.sha256)
                return True
            log.warning("cached_asset_broken", sha256=wanted.sha256)
            self._drop(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("cached_asset_broken", sha256=wanted.sha256, error=str(error))
            self._drop(path)
        return False

    async def _fetch(self, fetch: _Fetch, path: Path) -> None:
        wanted = fetch.wanted
        begun = time.monotonic()
        try:
            if await self._in_thread(self._is_whole, path, wanted):
                return
            await self._in_thread(self._make_room, wanted.size - fetch.begun())
            await self._in_thread(fetch.download.run)
            await self._in_thread(self._adopt, fetch.part, path, wanted.sha256)
        finally:
            del self._fetching[wanted.sha256]
        log.info(
            "asset_fetched",
            sha256=wanted.sha256,
            bytes=wanted.size,
            seconds=round(time.monotonic() - begun, 3),
        )

    def _adopt(self, part: Path, path: Path, sha256: str) -> None:
        os.chmod(part, 0o444)
        os.replace(part, path)
        sync_folder(self.folder)
        self._touch(path, sha256)

    def _touch(self, path: Path, sha256: str) -> None:
        """The time of the last use is kept in the file itself, so that it survives us."""
        self._touched[sha256] = time.monotonic()
        status = path.stat()
        os.utime(path, ns=(time.time_ns(), status.st_mtime_ns))
        self._digests.remember(str(path), sha256, stamp(path.stat()))

    def _drop(self, path: Path) -> None:
        self._digests.forget(str(path))
        self._touched.pop(path.name, None)
        with suppress(OSError):
            os.chmod(path, 0o600)  # Windows removes nothing that is read-only
            path.unlink()

    # --- room ----------------------------------------------------------------------------------

    def _make_room(self, size: int) -> None:
        """The longest unused go until the new one fits the limit. What attempts use stays, also
        beyond the limit; the disk decides then."""
        kept = self._in_use() | set(self._fetching)
        found = sorted(_files(self.folder), key=lambda one: one[1].st_atime_ns)
        total = size + sum(status.st_size for _, status in found)
        total += sum(status.st_size for _, status in _files(self._parts))
        for path, status in found:
            if total <= self._limit:
                break
            if path.name not in kept:
                self._drop(path)
                total -= status.st_size
                log.info("cached_asset_dropped", sha256=path.name, bytes=status.st_size)
        if size > shutil.disk_usage(self.folder).free:
            raise no_room("that the job names", size)

    async def close(self) -> None:
        tasks = [fetch.task for fetch in self._fetching.values()]
        for fetch in self._fetching.values():
            fetch.download.stop()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False)


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Those that are still there when they are looked at: others come and go meanwhile."""
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            status = path.stat()
            if S_ISREG(status.st_mode):
                yield path, status


class _Fetch:
    """One file that one or several attempts wait for."""

    task: asyncio.Task[None]

    def __init__(self, wanted: Input, parts: Path) -> None:
        self.wanted = wanted
        self.part = parts / wanted.sha256
        self.tickets: dict[Ticket, Wanted] = {}
        self.download = Download(wanted.sha256, wanted.size, self.part, tickets=self.living)

    def living(self) -> list[Ticket]:
        return [ticket for ticket, alive in list(self.tickets.items()) if alive()]

    def begun(self) -> int:
        try:
            return self.part.stat().st_size
        except OSError:
            return 0


def _heard(task: asyncio.Task[None]) -> None:
    """Whoever waits is told; where nobody does, nobody misses it."""
    if not task.cancelled():
        task.exception()
