"""Telling webhooks: a job failed, a batch is done, a worker was lost.

What has to be told is found in the journal, so nothing is written for it while jobs run: a small
file remembers up to which record each webhook knows everything. After a crash what lies behind it
is told again, under the same delivery id. One lane per webhook delivers in order; a dead one waits
alone and holds up nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import sqlite3
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog
from msgspec import Struct

from corral.controller.auth.vault import Vault
from corral.controller.journal.record import Change
from corral.controller.store import Store
from corral.controller.webhooks.delivery import NotDelivered, post, signature
from corral.controller.webhooks.payloads import EndedRow, Make, Payloads, ended_since
from corral.core.errors import CorralError, InvalidSettings
from corral.core.events import JobCancelled, JobFailed, JobSucceeded, WorkerJoined, WorkerLost
from corral.core.job import Head
from corral.core.webhook import address_of
from corral.home import read_json, write_private_json
from corral.settings import Webhook

log = structlog.get_logger()

ENDS = frozenset({JobSucceeded, JobFailed, JobCancelled})
IN_MEMORY = 10_000
"""What waits in memory for one webhook; failed jobs beyond it are found in the journal again."""
AT_ONCE = 8
REMEMBER_S = 1.0
"""How much may be told twice after a crash."""
IDLE_S = 60.0
AGAIN_S = 5.0
UNREAD = (sqlite3.Error, OSError, RuntimeError, MemoryError)
"""No descriptor, no memory, no thread to look something up: later there may be."""


class Timing(Struct, frozen=True):
    timeout_s: float = 10.0
    backoff_s: float = 1.0
    backoff_max_s: float = 300.0
    give_up_s: float = 86_400.0
    settle_s: float = 5.0
    """How long a batch must stay empty to be done: a streaming map is empty now and then."""


class Due(NamedTuple):
    """A batch that is empty, and since when nothing was added to it."""

    at: float
    seq: int
    head: Head


class Pending(NamedTuple):
    seq: int
    """The record it follows from; 0 for what is in no journal."""
    at: float
    event: str
    make: Make
    """The fields of its body: made when it is sent, since it may wait long."""


class Lane:
    """What one webhook has yet to be told, in order."""

    def __init__(self, url: str, secret: str, after: int) -> None:
        self.url, self.secret, self.after = url, secret, after
        self.address = address_of(url)
        self.pending: dict[str, Pending] = {}
        self.missed = 0
        """The first failed job that found no room in memory."""
        self.task: asyncio.Task[None] | None = None

    def known_until(self) -> int | None:
        """Up to here it knows everything; None where it knows all there is."""
        waiting = [one.seq for one in self.pending.values() if one.seq]
        if self.missed:
            waiting.append(self.missed)
        return min(waiting) - 1 if waiting else None


class Notifier:
    def __init__(
        self,
        store: Store,
        vault: Vault,
        path: Path,
        *,
        webhooks: Sequence[Webhook] = (),
        batch_secret: str = "",
        timing: Timing = Timing(),  # noqa: B008 - it is frozen
    ) -> None:
        self._store, self._vault, self._path, self._timing = store, vault, path, timing
        self._webhooks, self._batch_secret = webhooks, batch_secret
        for webhook in webhooks:
            try:
                address_of(webhook.url)
            except ValueError as error:
                raise InvalidSettings(f"notify: {error}") from None
        self._telling = Payloads(store)
        self._lanes: dict[str, Lane] = {}
        self._due: dict[str, Due] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._changed = asyncio.Event()
        self._workers: set[str] = set()
        self._random = random.Random()  # noqa: S311 (spreads tries, hides nothing)
        self._seq = self._first = store.journal.last_seq()
        before = read_json(path)
        # A journal restored from a backup may be behind what was told before.
        self._before = min(before["seq"], self._first) if "seq" in before else None
        self._known: dict[str, int] = {
            url: min(seq, self._first) for url, seq in before.get("webhooks", {}).items()
        }
        """Where each webhook was that had something to be told when this was written."""
        self._caught_up = False
        self._written: dict[str, Any] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._behind: tuple[int, int] | None = None
        """Records that could not be heard of, behind the first and up to the second."""
        store.listen(self._committed, missed=self._missed)

    # --- what happens ---

    def _committed(self, changes: Sequence[Change]) -> None:
        """Called for every commit, so it looks at ends alone, and mostly at one attribute."""
        self._seq = changes[-1].seq
        for change in changes:
            if type(change.fact) in ENDS and (self._webhooks or change.head.given.notify):
                if type(change.fact) is JobFailed:
                    self._failed(change.seq, change.fact.at, change.head)
                self._emptied(change.seq, change.head)

    def _missed(self, changes: Sequence[Change]) -> None:
        """They are found in the journal, like those that an earlier controller did not tell."""
        after, until = changes[0].seq - 1, changes[-1].seq
        if self._behind is not None:
            after = min(after, self._behind[0])
        self._seq, self._behind = until, (after, until)
        self._changed.set()

    def _failed(self, seq: int, at: float, head: Head, only: str = "") -> None:
        for lane in self._lanes_for("job_failed", head, only):
            make = partial(self._telling.job_failed, head.id)
            self._add(lane, f"job_failed|{head.id}", Pending(seq, at, "job_failed", make))

    def _emptied(self, seq: int, head: Head) -> None:
        """The job was perhaps the last one of its batch."""
        batch = head.batch or (f"job {head.id}" if head.given.notify else "")
        if batch and batch not in self._store.world.batches:
            settle_s = self._timing.settle_s if head.batch else 0.0
            self._due[batch] = Due(asyncio.get_running_loop().time() + settle_s, seq, head)
            if self._timer is None or not settle_s:
                self._wait_for_due(settle_s)

    def _wait_for_due(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._settle)

    def _settle(self) -> None:
        """Batches that stayed empty are done; those that did not come here again."""
        self._timer = None
        now = asyncio.get_running_loop().time()
        for batch, due in list(self._due.items()):
            if due.at > now + 0.001:
                continue
            del self._due[batch]
            if batch not in self._store.world.batches:
                self._batch_done(due)
        if self._due:
            self._wait_for_due(max(min(due.at for due in self._due.values()) - now, 0.001))

    def _batch_done(self, due: Due) -> None:
        batch, job = due.head.batch, due.head.id
        for lane in self._lanes_for("batch_done", due.head):
            # The last of its jobs to end tells one emptying of a batch from the next.
            make = partial(self._telling.batch_done, batch, job)
            pending = Pending(due.seq, time.time(), "batch_done", make)
            self._add(lane, f"batch_done|{batch}|{job}", pending)

    def worker(self, report: WorkerJoined | WorkerLost, attempts: int) -> None:
        """A worker came or went. One that said goodbye is not lost, and neither is one that was
        away before this controller started."""
        if isinstance(report, WorkerJoined):
            self._workers.add(report.worker)
            return
        known = report.worker in self._workers or attempts
        self._workers.discard(report.worker)
        if report.expected or not known:
            return
        now = time.time()
        name = self._store.world.names.get(report.worker, report.worker)
        make = partial(self._telling.worker_lost, report, name, attempts)
        for lane in self._lanes_for("worker_lost", None):
            pending = Pending(0, now, "worker_lost", make)
            self._add(lane, f"worker_lost|{report.worker}|{now}", pending)

    def _lanes_for(self, event: str, head: Head | None, only: str = "") -> Iterator[Lane]:
        told: dict[str, str] = {}
        for webhook in self._webhooks:
            labels = dict(head.given.labels) if head is not None else {}
            if event in webhook.on and webhook.labels.items() <= labels.items():
                told.setdefault(webhook.url, webhook.secret)
        if head is not None and head.given.notify:
            told.setdefault(head.given.notify, self._batch_secret)
        for url, secret in told.items():
            if only and url != only:
                continue
            lane = self._lanes.get(url)
            if lane is None:
                after = self._known.get(url, self._before or 0)
                lane = self._lanes[url] = Lane(url, secret, after)
            yield lane

    def _add(self, lane: Lane, what: str, pending: Pending) -> None:
        delivery = hashlib.sha256(f"{what}|{lane.url}".encode()).hexdigest()[:32]
        if delivery in lane.pending or 0 < pending.seq <= lane.after:
            return  # it waits already, or was told before this controller started
        crowded = lane.missed or len(lane.pending) >= IN_MEMORY
        if crowded and pending.event == "job_failed":
            lane.missed = min(lane.missed or pending.seq, pending.seq)
            return
        lane.pending[delivery] = pending
        self._changed.set()
        if lane.task is None:
            lane.task = asyncio.create_task(self._deliver(lane))
            lane.task.add_done_callback(_broke)

    # --- delivering ---

    async def _deliver(self, lane: Lane) -> None:
        tries = 0
        while True:
            while lane.pending:
                delivery, pending = next(iter(lane.pending.items()))
                reason = await self._try(lane, delivery, pending)
                if reason is None or time.time() - pending.at > self._timing.give_up_s:
                    del lane.pending[delivery]
                    self._changed.set()
                    tries = 0
                    told = {"host": lane.address.netloc, "delivery": delivery}
                    if reason is None:
                        log.debug("notification_delivered", **told)
                    else:
                        told |= {"event_kind": pending.event, "reason": reason}
                        log.error("notification_given_up", **told)
                    continue
                pause_s = self._pause(tries)
                log.warning(
                    "notification_failed",
                    host=lane.address.netloc,
                    event_kind=pending.event,
                    delivery=delivery,
                    reason=reason,
                    tries=tries + 1,
                    again_in_s=round(pause_s, 1),
                )
                tries += 1
                await asyncio.sleep(pause_s)
            if not lane.missed:
                break
            after, lane.missed = lane.missed - 1, 0
            await self._catch_up(after, self._seq, only=lane.url)
        lane.task = None
        del self._lanes[lane.url]

    def _pause(self, tries: int) -> float:
        timing = self._timing
        pause_s = min(timing.backoff_s * 2.0 ** min(tries, 30), timing.backoff_max_s)
        return pause_s * self._random.uniform(0.5, 1.0)

    async def _try(self, lane: Lane, delivery: str, pending: Pending) -> str | None:
        """None when the webhook has it, or it is no longer to be told; else why not."""
        try:
            fields = await pending.make()
        except CorralError as error:
            log.warning("notification_dropped", delivery=delivery, reason=str(error))
            return None
        except UNREAD as error:
            return str(error)
        told = {"id": delivery, "event": pending.event, "at": round(pending.at, 3), **fields}
        body = msgspec.json.encode(told)
        headers = {"Corral-Event": pending.event, "Corral-Delivery": delivery}
        if lane.secret:
            if lane.secret not in self._vault:
                return f"the secret {lane.secret} that signs it is not set"
            value = self._vault.values([lane.secret])[lane.secret]
            headers["Corral-Signature"] = signature(value, int(time.time()), body)
        try:
            async with self._slots:
                await post(lane.address, headers, body, self._timing.timeout_s)
        except NotDelivered as error:
            return str(error)
        return None

    # --- remembering ---

    async def run(self) -> None:
        """Tells what was not told before a crash, then remembers how far everybody is."""
        if self._before is not None and not self._caught_up:
            await self._catch_up(min([self._before, *self._known.values()]), self._first)
        self._caught_up = True
        await self._remember()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(IDLE_S):
                    await self._changed.wait()
                await asyncio.sleep(REMEMBER_S)
            self._changed.clear()
            if self._behind is not None:
                (after, until), self._behind = self._behind, None
                await self._catch_up(after, until)
            await self._remember()

    async def _catch_up(self, after: int, until: int, only: str = "") -> None:
        """Finds in the journal what was not told: by an earlier controller, or because it could
        not be heard; or the failed jobs for which one webhook had no room."""
        path, everybody = self._store.journal.path, bool(self._webhooks)
        while True:
            try:
                rows = await asyncio.to_thread(ended_since, path, after, until, everybody)
                break
            except UNREAD as error:
                log.error("notifications_not_found_again", after=after, error=str(error))
                await asyncio.sleep(AGAIN_S)
        for number, row in enumerate(rows):
            self._look_back(row, only)
            if number % 50 == 49:
                await asyncio.sleep(0)

    def _look_back(self, row: EndedRow, only: str) -> None:
        try:
            head = self._store.head(row.job)
        except CorralError as error:
            log.warning("notification_dropped", job=row.job, reason=str(error))
            return
        if row.failed:
            self._failed(row.last_seq, row.ended_at, head, only)
        elif not only:
            self._emptied(row.last_seq, head)

    async def _remember(self) -> None:
        cursors = self._cursors()
        if not self._caught_up or cursors == self._written:
            return
        writing = asyncio.to_thread(write_private_json, self._path, cursors)
        self._writing = asyncio.create_task(writing)
        try:
            await asyncio.shield(self._writing)
        except OSError as error:
            log.warning("notify_cursor_not_written", error=str(error))
            return
        self._written = cursors

    def _cursors(self) -> dict[str, Any]:
        behind = [] if self._behind is None else [self._behind[0]]
        seq = min([self._seq, *behind, *(due.seq - 1 for due in self._due.values())])
        lanes = {url: lane.known_until() for url, lane in self._lanes.items()}
        webhooks = {url: until for url, until in lanes.items() if until is not None}
        return {"seq": seq, "webhooks": webhooks}

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        for task in tasks:
            task.cancel()
        if self._writing is not None:  # its thread goes on where `run` was cancelled meanwhile
            tasks.append(self._writing)
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._remember()


def _broke(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("notifying_broke", exc_info=error)
