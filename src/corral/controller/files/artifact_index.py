"""The artifacts of jobs by name, however many: looked up once, a slice at a time, and remembered
for whoever goes through them."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from typing import cast

from corral.controller.store import Store
from corral.core.errors import BlobNotFound
from corral.core.events import ArtifactStored
from corral.core.job import JobId

SLICE = 200
"""Records that are read before others get their turn."""
REMEMBERED = 100_000
"""Names of artifacts that stay in memory; those of the job that was asked for last always do."""


class _Found:
    """What one job had stored up to a record of the journal."""

    def __init__(self) -> None:
        self.last_seq = 0
        self.seqs: dict[str, int] = {}
        """By name: the record that stored it last."""
        self.order: list[int] = []


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
                looking = asyncio.create_task(self._look(job, found or _Found(), last_seq))
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
        found = _Found()
        found.seqs, found.last_seq = {**known.seqs, **newer}, last_seq
        found.order = sorted(found.seqs.values())
        self._found[job] = found
        self._found.move_to_end(job)
        self._forget()
        return found

    def _forget(self) -> None:
        while len(self._found) > 1 and _names(self._found.values()) > REMEMBERED:
            self._found.popitem(last=False)


def _names(found: Iterable[_Found]) -> int:
    return sum(len(one.order) for one in found)
