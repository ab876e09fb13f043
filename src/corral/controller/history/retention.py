"""What ended jobs left behind goes after its time, or when there is too much of it.

Runs beside everything else in small pieces: history through the store, between two commits; blobs
and output by the clock. Nothing of a living job is ever touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import structlog
from msgspec import Struct

from corral.controller.files.blobs import NOTED, Blobs
from corral.controller.history.ended import EndedJob
from corral.controller.journal import sql
from corral.controller.journal.record import UNREADABLE, JournalRecord
from corral.controller.output.spool import Spool
from corral.controller.store import Store
from corral.core.errors import CorralError, JournalDamaged
from corral.settings import RetentionSettings

log = structlog.get_logger()

DAY_S = 86_400.0
EVERY_S = 60.0
SWEEP_S = 600.0
SLICE_S = 0.004
"""How long one piece of pruning may keep submissions waiting."""
SHARE = 0.1
"""How much of the writer's time pruning takes while there is something to prune."""
UNCLAIMED_S = DAY_S
"""How long bytes stay that no job names: an upload comes before its job."""
FETCH_S = 3600.0
"""However little room there is, whoever waited for a job has this long to fetch its bytes."""
PAGE = 500
GB = 1e9

_DIGESTS = re.compile(rb"[0-9a-f]{64}")


class KeptBytes(Struct, frozen=True):
    """One thing on the disk: how large, how old, and when the last job that it belongs to ended."""

    name: str
    size: int
    at: float
    ended_at: float | None
    """None where no job is known that it belongs to, infinite where one lives."""


def due(
    things: Collection[KeptBytes], now: float, *, keep_s: float, limit: float, unclaimed_s: float
) -> list[tuple[KeptBytes, bool]]:
    """What no job names any more, and what ended jobs must give up: by age, then the oldest ends
    first until the rest fits. With each, whether somebody may still ask for it."""
    unclaimed = [one for one in things if one.ended_at is None and one.at < now - unclaimed_s]
    ended = sorted(
        (one for one in things if one.ended_at is not None and one.ended_at < now and one.size),
        key=lambda one: (one.ended_at, one.name),
    )
    total = sum(one.size for one in things) - sum(one.size for one in unclaimed)
    found = [(one, False) for one in unclaimed]
    for one in ended:
        assert one.ended_at is not None
        too_much = total > limit and one.ended_at < now - FETCH_S
        if one.ended_at >= now - keep_s and not too_much:
            break
        found.append((one, True))
        total -= one.size
    return found


class Retention:
    def __init__(
        self,
        store: Store,
        blobs: Blobs,
        spool: Spool,
        limits: RetentionSettings,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._blobs, self._spool = store, blobs, spool
        self._limits, self._clock = limits, clock
        self._wake = asyncio.Event()
        self._damaged: set[str] = set()
        self._swept_at = 0.0
        self._pruned = True
        """Whether jobs went since the last sweep, or may have gone before this start."""
        self.busy = asyncio.Lock()
        """Who copies blobs and output holds this, so that none goes meanwhile."""

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        self._swept_at = time.monotonic()  # a start has other things to do
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await self._wake.wait()
            woken = self._wake.is_set()
            self._wake.clear()
            try:
                await self.turn(at_once=woken)
            except (CorralError, OSError, *UNREADABLE) as error:
                # A full disk, for one. What cannot go now goes later.
                log.warning("retention_failed", error=str(error))

    async def turn(self, *, at_once: bool = True) -> None:
        async with self.busy:
            await self._prune_history()
            if at_once or time.monotonic() > self._swept_at + SWEEP_S:
                await self._sweep()

    # --- history ---

    async def _prune_history(self) -> None:
        jobs = records = 0
        before = await asyncio.to_thread(self._cut)
        while found := await asyncio.to_thread(self._ended_before, before):
            while found:
                begun = time.monotonic()
                done = await self._store.prune(found, SLICE_S)
                found = found[done.jobs :]
                jobs, records = jobs + done.jobs - len(done.damaged), records + done.records
                for job in done.damaged:
                    log.error("damaged_job_not_pruned", job=job)
                    self._damaged.add(job)
                await asyncio.sleep((time.monotonic() - begun) * (1 / SHARE - 1))
        if jobs:
            self._pruned = True
            log.info("history_pruned", jobs=jobs, records=records)

    def _cut(self) -> float:
        """When the youngest job ended that has to go. A day of history stays, however long."""
        limits, now = self._limits, self._clock()
        cut = now - limits.history_s
        with contextlib.closing(sql.open_read_only(self._store.journal.path)) as reader:
            over = reader.execute(sql.ENDED_COUNT).fetchone()[0] - limits.history_jobs
            if over > 0:
                nth = reader.execute(sql.ENDED_NTH, (over,)).fetchone()
                cut = max(cut, min(nth[0], now - DAY_S))
        return cut

    def _ended_before(self, cut: float) -> list[str]:
        with contextlib.closing(sql.open_read_only(self._store.journal.path)) as reader:
            rows = reader.execute(sql.ENDED_BEFORE, (cut, PAGE + len(self._damaged)))
            return [row[0] for row in rows if row[0] not in self._damaged]

    # --- bytes ---

    async def _sweep(self) -> None:
        now = self._clock()
        blobs, notes = await asyncio.to_thread(self._due_blobs, now)
        removed, freed = 0, 0
        for one, noted in blobs:
            if path := self._blobs.remove(one.name, noted=noted):
                await asyncio.to_thread(path.unlink)
                removed, freed = removed + 1, freed + one.size
        await asyncio.to_thread(_unlink, notes)
        if removed:
            log.info("artifacts_pruned", count=removed, bytes=freed)
        removed, freed = 0, 0
        for one, noted, attempts in await asyncio.to_thread(self._due_output, now):
            await asyncio.to_thread(self._spool.prune, one.name, attempts, noted=noted)
            removed, freed = removed + 1, freed + one.size
        if removed:
            log.info("output_pruned", jobs=removed, bytes=freed)
        self._swept_at, self._pruned = time.monotonic(), False

    def _worth_reading(self, infos: Collection[os.stat_result], now: float) -> bool:
        """Whether any blob could have to go: to find out which, the whole journal is read."""
        old = now - self._limits.artifacts_s
        return (
            self._pruned
            or sum(info.st_size for info in infos) > self._limits.artifacts_gb * GB
            or any(info.st_mtime < old for info in infos)
            or time.monotonic() > self._swept_at + DAY_S
        )

    def _due_blobs(self, now: float) -> tuple[list[tuple[KeptBytes, bool]], list[Path]]:
        """Blobs that have to go, and notes nobody needs."""
        stored = self._blobs.stored()
        noted = {name.removesuffix(NOTED) for name in stored if name.endswith(NOTED)}
        sizes = {name: info for name, info in stored.items() if not name.endswith(NOTED)}
        if not stored or not self._worth_reading(sizes.values(), now):
            return [], []
        ends = self._named({*sizes, *noted})
        things = [
            KeptBytes(name=name, size=info.st_size, at=info.st_mtime, ended_at=ends.get(name))
            for name, info in sizes.items()
        ]
        notes = [self._blobs.note(name) for name in noted if name not in ends or name in sizes]
        keep_s, limit = self._limits.artifacts_s, self._limits.artifacts_gb * GB
        return due(things, now, keep_s=keep_s, limit=limit, unclaimed_s=UNCLAIMED_S), notes

    def _named(self, names: Collection[str]) -> Mapping[str, float]:
        """Which of these digests jobs name anywhere, and when the last of those jobs ended.

        Every record is proven on the way: by a damaged one bytes could seem to be nobody's."""
        ends: dict[str, float] = {}
        after = 0
        with contextlib.closing(sql.open_read_only(self._store.journal.path)) as reader:
            while rows := reader.execute(sql.SCAN_WITH_END, (after, PAGE)).fetchall():
                for *fields, ended_at in rows:
                    record = JournalRecord._make(fields)
                    if not record.intact():
                        raise JournalDamaged(f"Record {record.seq} of the journal is damaged.")
                    end = math.inf if ended_at is None else float(ended_at)
                    for digest in _digests(record):
                        if digest in names:
                            ends[digest] = max(end, ends.get(digest, 0.0))
                after = rows[-1][0]
                time.sleep(0.001)  # other threads want to run too
        return ends

    def _due_output(self, now: float) -> list[tuple[KeptBytes, bool, Collection[int]]]:
        """Output that has to go, and the attempts that wrote it."""
        stored = self._spool.stored()
        things = []
        with contextlib.closing(sql.open_read_only(self._store.journal.path)) as reader:
            for job, kept in stored.items():
                ended_at: float | None = math.inf
                # In this order: a job that ends just now is in the history before it leaves.
                if job not in self._store.world.heads:
                    row = reader.execute(sql.ENDED_JOB, (job,)).fetchone()
                    ended_at = EndedJob._make(row).ended_at if row else None
                things.append(
                    KeptBytes(name=job, size=kept.size, at=kept.written_at, ended_at=ended_at)
                )
        keep_s, limit = self._limits.output_s, self._limits.output_gb * GB
        found = due(things, now, keep_s=keep_s, limit=limit, unclaimed_s=0.0)
        return [(one, noted, stored[one.name].attempts) for one, noted in found]


def _digests(record: JournalRecord) -> Iterable[str]:
    found = _DIGESTS.findall(record.body)
    if record.document is not None:
        found += _DIGESTS.findall(record.document)
    return (digest.decode() for digest in found)


def _unlink(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
