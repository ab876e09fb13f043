"""For engines whose attempts report by themselves, through the attempts' door: their mailbox.

`python -m corral.runtime.standalone` runs one attempt and posts what it has to tell. An engine that
starts such processes has a `mailbox`; the server finds it by that, and brings it what they post.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Protocol, runtime_checkable

from corral.core.errors import Conflict, InvalidRequest
from corral.core.events import (
    AttemptBegan,
    AttemptExited,
    AttemptOutput,
    AttemptReturned,
    EngineReport,
    WorkerLost,
)
from corral.core.frames import OutputFrame
from corral.core.job import Failure, JobId
from corral.engines.engine import EngineContext
from corral.engines.reports import Key, exited, moment, progress
from corral.protocol.attempt_messages import (
    AnyAttemptMessage,
    AskedToEnd,
    AttemptAnswer,
    AttemptMessages,
    BeganMessage,
    EndedMessage,
    MissingMessage,
    OutputMessage,
)

MOST_NUMBER = 2**53
"""Up to here every reader of JSON knows a whole number exactly."""


class _Sender:
    """One attempt that posts."""

    def __init__(self, worker: str, number: int) -> None:
        self.worker = worker
        self.number = number
        """Of the last thing that was taken from it."""
        self.process: str | None = None
        """The process that speaks for it, once one did in this life of the controller."""
        self.began = self.ended = False
        self.cancel: AskedToEnd | None = None
        self.news = asyncio.Event()
        """Set when an answer would say more than the last one did."""
        self.taking = asyncio.Lock()
        """One batch at a time: the same one may come twice at once, when a connection broke."""
        self.written: asyncio.Future[None] | None = None
        """Done when the last that was taken from it is on disk."""


class Mailbox:
    """Takes what attempts post, as reports of their engine, and answers when that is on disk. The
    engine adds what it sees itself by `report`, and hands out `events` and `running` as its own."""

    def __init__(self, context: EngineContext) -> None:
        self._told, self._placed_on = context.told, context.placed_on
        self._senders: dict[Key, _Sender] = {}
        self._inbox: list[EngineReport] = []
        self._arrived = asyncio.Event()
        self._written: asyncio.Future[None] | None = None
        """Done when what is in the inbox is on disk."""
        self._settled = asyncio.Event()
        self._settled.set()

    # --- for the engine ---

    def expect(self, job: JobId, attempt: int, worker: str) -> bool:
        """From now on it is among `running`; False: it is already, so it must not start again."""
        if (job, attempt) in self._senders:
            return False
        self._sender((job, attempt), worker)
        return True

    def cancel(self, job: JobId, attempt: int, grace_s: float) -> None:
        """Its next answer says so, which it waits for."""
        worker = self._placed_on(job, attempt)
        if (job, attempt) not in self._senders and not worker:
            return
        sender = self._sender((job, attempt), worker)
        sender.cancel = AskedToEnd(grace_s)
        sender.news.set()

    def wake(self, job: JobId, attempt: int) -> None:
        """There is something else to tell it: whoever asks for it is answered now."""
        sender = self._senders.get((job, attempt))
        if sender is not None:
            sender.news.set()

    def gone(self, job: JobId, attempt: int, worker: str, failure: Failure) -> None:
        """Its process is gone. Unless it told its end before, that is how it ended."""
        sender = self._senders.get((job, attempt))
        if not self._placed_on(job, attempt):
            self.forget(job, attempt)  # it was over before
        elif sender is not None and not sender.ended:
            sender.ended = True
            now, told = time.time(), sender.number
            self.report(AttemptExited(job, attempt, worker, now, 0.0, failure=failure, output=told))

    def running(self) -> Collection[Key]:
        """What is expected, or ended and not on disk yet."""
        return list(self._senders)

    def report(self, *reports: EngineReport) -> asyncio.Future[None]:
        """Something the engine saw; done when it is on disk."""
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
        self._inbox.extend(reports)
        self._settled.clear()
        self._arrived.set()
        return self._written

    async def events(self) -> AsyncIterator[Sequence[EngineReport]]:
        while True:
            if not self._inbox:
                self._settled.set()
            await self._arrived.wait()
            self._arrived.clear()
            batch, self._inbox = self._inbox, []
            written, self._written = self._written, None
            if batch:
                yield batch
                for report in batch:
                    self._note_end(report)
            if written is not None and not written.done():
                written.set_result(None)

    async def settled(self) -> None:
        """Until everything that was reported is on disk."""
        await self._settled.wait()

    def _note_end(self, report: EngineReport) -> None:
        if isinstance(report, (AttemptExited, AttemptReturned)):
            self.forget(report.job, report.attempt)
        elif isinstance(report, WorkerLost):
            for key, sender in list(self._senders.items()):
                if sender.worker == report.worker:
                    self.forget(*key)

    # --- for the door ---

    async def post(
        self, job: JobId, attempt: int, worker: str, batch: AttemptMessages
    ) -> AttemptAnswer:
        sender = self._sender((job, attempt), worker)
        if batch.messages:
            async with sender.taking:
                await self._take(sender, (job, attempt), batch)
        elif sender.cancel is None and batch.wait_s:
            try:
                async with asyncio.timeout(batch.wait_s):
                    await sender.news.wait()
            except TimeoutError:
                pass
            if sender.cancel is None:
                sender.news.clear()
        return AttemptAnswer(sender.number, sender.cancel)

    def forget(self, job: JobId, attempt: int) -> None:
        """It is over: whoever still waits for an answer asks again, and is told so."""
        sender = self._senders.pop((job, attempt), None)
        if sender is not None:
            sender.news.set()

    async def _take(self, sender: _Sender, key: Key, batch: AttemptMessages) -> None:
        if sender.process not in (None, batch.process):
            told = f"Attempt {key[1]} of job {key[0]} is run by another process already."
            raise Conflict(told, job_id=key[0])
        if batch.after <= sender.number:  # or it begins behind what was received
            reports = self._reports(sender, key, batch)
            if reports:
                sender.written = self.report(*reports)
        if sender.written is not None:
            await asyncio.shield(sender.written)

    def _reports(self, sender: _Sender, key: Key, batch: AttemptMessages) -> list[EngineReport]:
        """What of a batch is new. All of it is looked at before any of it counts."""
        number, known, now = batch.after, sender.number, time.time()
        reports: list[EngineReport] = []
        for place, message in enumerate(batch.messages, 1):
            before, number = number, number + message.told
            if isinstance(message, EndedMessage) and place < len(batch.messages):
                raise InvalidRequest("Nothing follows the end of an attempt.")
            if number > MOST_NUMBER:
                raise InvalidRequest("Nobody tells as much as that.")
            if before < known < number:
                raise InvalidRequest(f"Number {known} lies within a message; go on behind it.")
            if number > known or not message.told:
                reports += self._report_of(sender, key, message, number, now)
        sender.process = batch.process
        if sender.ended:
            return []
        sender.number = max(number, known)
        sender.began = sender.began or any(isinstance(one, AttemptBegan) for one in reports)
        sender.ended = any(isinstance(one, AttemptExited) for one in reports)
        return reports

    def _report_of(
        self, sender: _Sender, key: Key, message: AnyAttemptMessage, number: int, now: float
    ) -> list[EngineReport]:
        named = (*key, sender.worker)
        if isinstance(message, BeganMessage):
            at = moment(message.at, now)
            return [] if sender.began else [AttemptBegan(*named, at, message.devices)]
        if isinstance(message, MissingMessage):
            return []  # the next number says so
        if isinstance(message, EndedMessage):
            return [exited(*named, message, message.result, message.failure, number, now)]
        if isinstance(message, OutputMessage):
            output = OutputFrame(now, message.stream, message.text, message.data, number)
            return [AttemptOutput(*named, output)]
        return [AttemptOutput(*named, progress(message, number, now))]

    def _sender(self, key: Key, worker: str) -> _Sender:
        """After a restart of the controller what is on disk says where it goes on."""
        sender = self._senders.get(key)
        if sender is None:
            sender = self._senders[key] = _Sender(worker, self._told(*key))
        return sender


@runtime_checkable
class Posted(Protocol):
    """An engine whose attempts report through the attempts' door."""

    mailbox: Mailbox
