"""Lists of jobs and batches, living and ended, newest first.

Living jobs are looked through in memory, a slice at a time so that nobody waits for it; ended ones
are found by the columns of `history`, in a thread and over a connection of its own. No record of
the journal is read to find a job: only those that a page shows are.
"""

from __future__ import annotations

import asyncio
import heapq
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from msgspec import Struct

from corral.controller.journal import sql
from corral.controller.store import Store
from corral.core.errors import BatchNotFound, InvalidRequest
from corral.core.job import ENDED, Head, JobId, QueueClass, State

T = TypeVar("T")

SLICE = 2000
"""How many living jobs are looked at before others get their turn."""
Turn = tuple[str, str, float, float]
"""Worker, model, from when, to when."""
_ASCII_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


class JobFilters(Struct, frozen=True, kw_only=True):
    """Which jobs; what is empty chooses nothing."""

    states: frozenset[State] = frozenset()
    active: bool = False
    queue_class: str = ""
    worker: str = ""
    """A worker's name or id."""
    batch: str = ""
    labels: tuple[str, ...] = ()
    """`key=value`, or `key` alone; all of them."""
    user: str = ""
    since: float = 0.0
    until: float = 0.0
    """Submitted at or after, and before."""
    text: str = ""
    """In the name, the id or the failure's message, or the failure's code."""

    @classmethod
    def checked(
        cls, *, states: Iterable[str] = (), queue_class: str = "", **more: Any
    ) -> JobFilters:
        wanted = list(states)
        if odd := [state for state in wanted if state not in set(State)]:
            raise InvalidRequest(
                f"There is no state {odd[0][:40]!r}; there are {', '.join(State)}."
            )
        if queue_class and queue_class not in set(QueueClass):
            raise InvalidRequest(f"The class is interactive or batch; got {queue_class[:40]!r}.")
        return cls(states=frozenset(map(State, wanted)), queue_class=queue_class, **more)

    @property
    def living(self) -> bool:
        """Whether a job that has not ended can be among them."""
        return not self.states or bool(self.states - ENDED)

    @property
    def ended(self) -> bool:
        return not self.active and (not self.states or bool(self.states & ENDED))


class Counted(Struct):
    """How many jobs of a batch, or of some time, are in which state."""

    states: dict[str, int]
    submitted_at: float = 0.0
    ended_at: float = 0.0
    newest: JobId = ""
    seconds: float = 0.0

    def add(
        self, state: str, count: int, submitted_at: float, ended_at: float, job: JobId, took: float
    ) -> None:
        self.states[state] = self.states.get(state, 0) + count
        self.submitted_at = min(self.submitted_at or submitted_at, submitted_at)
        self.ended_at = max(self.ended_at, ended_at)
        self.newest = max(self.newest, job)
        self.seconds += took

    @property
    def total(self) -> int:
        return sum(self.states.values())

    @property
    def done(self) -> int:
        return sum(self.states.get(state, 0) for state in ENDED)


class Listing:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="listing")
        self._reader: sqlite3.Connection | None = None

    def close(self) -> None:
        self._thread.shutdown()
        if self._reader is not None:
            self._reader.close()

    # --- jobs ---

    async def page(self, filters: JobFilters, *, before: JobId = "", limit: int) -> list[JobId]:
        """The newest `limit` ids below `before`. A job that ends meanwhile keeps its place: the
        living are looked at first, so none can slip through between the two."""
        found: set[JobId] = set()
        if filters.living:
            found.update(await self._living(filters, before, limit))
        if filters.ended:
            plan = self._plan(filters, before)
            conditions = " AND ".join(condition for condition, _ in plan) or "1"
            values = [value for _, bound in plan for value in bound]
            query = sql.ENDED_LISTED.format(conditions=conditions)
            found.update(str(row[0]) for row in await self._rows(query, *values, limit))
        return heapq.nlargest(limit, found)

    async def _living(self, filters: JobFilters, before: JobId, limit: int) -> list[JobId]:
        if not self._lives(filters.batch):
            return []
        fits, found, above = self._chooser(filters), list[JobId](), ""
        async for heads in _slices(list(self._store.world.heads.values())):
            newest = [
                head for head in heads if head.id > above and (not before or head.id < before)
            ]
            found += [head.id for head in newest if fits(head)]
            if len(found) >= limit:
                found = heapq.nlargest(limit, found)
                above = found[-1]  # what is older than a full page need not be looked at
        return found

    def _workers(self, name: str) -> set[str]:
        return {name, *(one for one, called in self._store.world.names.items() if called == name)}

    def _chooser(self, filters: JobFilters) -> Callable[[Head], bool]:
        states, batch, user = filters.states, filters.batch, filters.user
        workers = self._workers(filters.worker) if filters.worker else None
        labels = [_having(label) for label in filters.labels]
        text = _lower(filters.text)
        since, until = filters.since, filters.until

        def fits(head: Head) -> bool:
            return (
                (not states or head.state in states)
                and (not batch or head.batch == batch)
                and (not user or head.given.user == user)
                and (not filters.queue_class or head.shape.queue_class == filters.queue_class)
                and (workers is None or head.worker in workers)
                and (not since or head.submitted_at >= since)
                and (not until or head.submitted_at < until)
                and (not labels or all(has(head.given.labels) for has in labels))
                and (not text or text in _lower(head.name) or text in head.id)
            )

        return fits

    def _plan(self, filters: JobFilters, before: JobId) -> list[tuple[str, Sequence[object]]]:
        """Conditions on rows of the history, with what they bind."""
        ended = sorted(filters.states & ENDED)
        text = _lower(filters.text)
        workers = sorted(self._workers(filters.worker)) if filters.worker else []
        wanted: list[tuple[object, str, Sequence[object]]] = [
            (before, sql.LISTED_BY["before"], [before]),
            (filters.batch, sql.LISTED_BY["batch"], [filters.batch]),
            (filters.user, sql.LISTED_BY["user"], [filters.user]),
            (filters.queue_class, sql.LISTED_BY["class"], [filters.queue_class]),
            (filters.since, sql.LISTED_BY["since"], [filters.since]),
            (filters.until, sql.LISTED_BY["until"], [filters.until]),
            (text, sql.LISTED_BY["text"], [text, text, text, text]),
            (ended, f"state IN ({_marks(ended)})", ended),
            # Said in so many words, the index of what did not succeed can be used.
            (ended and State.SUCCEEDED not in ended, sql.LISTED_BY["not succeeded"], []),
            (workers, f"worker IN ({_marks(workers)})", workers),
            *((label, sql.LISTED_BY["label"], [_label(label)]) for label in filters.labels),
        ]
        return [(condition, bound) for asked, condition, bound in wanted if asked]

    # --- counts ---

    async def since(self, at: float) -> Counted:
        """How the jobs that ended behind this moment ended."""
        counted = Counted({})
        for state, count, seconds in await self._rows(sql.ENDED_SINCE, at):
            counted.add(state, count, 0.0, 0.0, "", seconds)
        return counted

    async def batch(self, batch: str) -> Counted:
        """One batch, counted as it was when this was called."""
        found = await self._counted(sql.ENDED_OF_BATCH, batch)
        if batch not in found:
            raise BatchNotFound(f"No job belongs to a batch {batch[:100]!r}.")
        return found[batch]

    async def _counted(self, query: str, *batch: str) -> dict[str, Counted]:
        """Living and ended jobs by batch. What ends meanwhile is among the rows, too: those come
        one by one, and it counts as living."""
        only, until = "".join(batch), self._store.seq
        heads = list(self._store.world.heads.values()) if self._lives(only) else []
        rows = await self._rows(query, *batch, until)
        late = {newest for *_, newest, _, last_seq in rows if last_seq > until}
        found: dict[str, Counted] = {}
        async for some in _slices(heads):
            for head in some:
                if head.batch and (not only or head.batch == only):
                    late.discard(head.id)
                    one = found.setdefault(head.batch, Counted({}))
                    one.add(head.state.value, 1, head.submitted_at, 0.0, head.id, 0.0)
        for start in range(0, len(rows), SLICE):
            for name, *row, last_seq in rows[start : start + SLICE]:
                if last_seq <= until or row[-2] in late:
                    found.setdefault(name, Counted({})).add(*row)
            await asyncio.sleep(0)
        return found

    def _lives(self, batch: str) -> bool:
        return not batch or batch in self._store.world.batches

    async def living(self, batch: str) -> AsyncIterator[list[Head]]:
        if self._lives(batch):
            async for heads in _slices(list(self._store.world.heads.values())):
                yield [head for head in heads if head.batch == batch]

    async def by_worker(self, batch: str) -> list[tuple[str, str, int, float]]:
        """What ended of a batch: worker, state, how many, their seconds."""
        return await self._rows(sql.ENDED_BY_WORKER, batch)

    async def turns(self, batch: str, count: Callable[[Iterable[Turn]], dict[str, T]]) -> Any:
        """What `count` makes, in a thread, of ended jobs with a model, in the order they began."""

        def counted(rows: Iterable[Any]) -> list[tuple[str, T]]:
            turns = (
                (worker, labels.partition("\nmodel=")[2].partition("\n")[0], began, ended_at)
                for worker, labels, began, ended_at in rows
            )
            return list(count(turns).items())

        return await self._rows(sql.ENDED_WITH_MODEL, batch, take=counted)

    async def batches(self, *, before: JobId = "", limit: int = 0) -> list[tuple[str, Counted]]:
        """Every batch, the one with the newest job first; or so many whose newest is older."""
        counted = await self._counted(sql.ENDED_BATCHES)

        def page() -> list[tuple[str, Counted]]:
            found = [one for one in counted.items() if not before or one[1].newest < before]
            return heapq.nlargest(limit or len(found), found, key=lambda one: one[1].newest)

        return await asyncio.to_thread(page)

    async def _rows(
        self, query: str, *values: object, take: Callable[[Iterable[Any]], list[Any]] = list
    ) -> list[Any]:
        def asked() -> list[Any]:
            if self._reader is None:
                self._reader = sql.open_read_only(self._store.journal.path)
            return take(self._reader.execute(query, values))

        return await asyncio.get_running_loop().run_in_executor(self._thread, asked)


async def _slices(heads: list[Head]) -> AsyncIterator[list[Head]]:
    """Those submitted last first; others have their turn in between."""
    for end in range(len(heads), 0, -SLICE):
        yield heads[max(0, end - SLICE) : end]
        await asyncio.sleep(0)


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _label(label: str) -> str:
    """What the text of a job's labels holds where it has this one."""
    return f"\n{label}\n" if "=" in label else f"\n{label}="


def _having(label: str) -> Callable[[Sequence[tuple[str, str]]], bool]:
    """The same question about labels in memory."""
    if "=" not in label:
        return lambda labels: any(key == label for key, _ in labels)
    parts = label.split("=")
    pairs = [("=".join(parts[:n]), "=".join(parts[n:])) for n in range(1, len(parts))]
    return lambda labels: any(pair in labels for pair in pairs)


def _lower(text: str) -> str:
    """As SQLite's lower() does it: letters beyond ASCII stay as they are."""
    return text.lower() if text.isascii() else text.translate(_ASCII_LOWER)
