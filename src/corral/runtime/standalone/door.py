"""This attempt's way to its controller: its order, and what it tells, kept until on disk there."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from corral.runtime.failures import TransferFailed
from corral.runtime.files.transfer import Transfer, TransferRefused
from corral.runtime.standalone.ticket import AttemptOrder, AttemptTicket, decode

PATIENCE_S = 24 * 3600.0
"""How long a controller may be away before a process that nobody asks for any more ends itself."""
ASK_S = 15.0
"""How long an answer is waited for when there is nothing to tell."""

BATCH_BYTES, BATCH_MESSAGES = 256 * 1024, 500
ROOM_BYTES = 1 << 20
"""A job that tells more than this faster than it is received waits in its own writes."""
COST = 128
"""What a message takes up beside the bytes that it carries."""

PROCESS = os.urandom(8).hex()
"""This process: another one may have been started for the same attempt."""

Over = TransferFailed
"""The controller does not want to hear more: the attempt is over, or never was this one's."""


Message = dict[str, Any]


class DoorClient(Transfer):
    """One connection, for one thread at a time."""

    def __init__(self, ticket: AttemptTicket) -> None:
        super().__init__(
            ticket.url,
            ticket.token,
            ticket.job,
            ticket.attempt,
            certificate=ticket.certificate,
            patience_s=PATIENCE_S,
        )

    def order(self) -> AttemptOrder:
        return self._persist(
            "order", lambda: decode(AttemptOrder, self._request("GET", "order").read())
        )

    def post(self, after: int, messages: list[Message]) -> int:
        """The number up to which all was received; without messages: where to begin."""
        batch = {"after": after, "process": PROCESS, "messages": messages}
        return int(self._answer(batch)["received"])

    def ask(self) -> dict[str, Any]:
        """Whether there is anything to know; waits a while for it."""
        return self._answer({"wait_s": ASK_S})

    def _answer(self, batch: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._persist("messages", lambda: self._tell("messages", batch))
        return found


class Told(NamedTuple):
    message: Message
    told: int
    """What it adds to the number of the attempt: bytes of output, one for progress."""
    size: int


class Outbox:
    def __init__(self, door: DoorClient, tell: Callable[[tuple[str, str]], None]) -> None:
        """`tell` hears that the attempt is `over`, or that a message was `refused`, and why."""
        self._door, self._tell = door, tell
        self._waiting: deque[Told] = deque()
        self._bytes = 0
        self._received = 0
        """The number up to which the controller has it all."""
        self._news = threading.Condition()
        self._over = False
        self.refusals = 0
        """How often the controller took something for no message; what waited then is dropped."""
        self._posting = threading.Thread(target=self._post_all, daemon=True)
        self._posting.start()

    def add(self, message: Message, told: int = 0, *, at_once: bool = False) -> None:
        """Waits for room, but for what is to be told `at_once`; nothing is kept of an attempt that
        is over. ValueError for no JSON."""
        size = len(json.dumps(message, ensure_ascii=False, allow_nan=False).encode()) + COST
        with self._news:
            self._news.wait_for(lambda: at_once or self._bytes < ROOM_BYTES or self._over)
            if not self._over:
                self._waiting.append(Told(message, told, size))
                self._bytes += size
                self._news.notify_all()

    def emptied(self) -> bool:
        """Waits until all was received; False: the controller did not want it."""
        with self._news:
            self._news.wait_for(lambda: not self._waiting or self._over)
            return not self._over

    def _post_all(self) -> None:
        try:
            self._received = self._door.post(0, [])
            while True:
                with self._news:
                    self._news.wait_for(lambda: self._waiting)
                    batch = self._next_batch()
                try:
                    received = self._door.post(self._received, [one.message for one in batch])
                except TransferRefused as error:
                    self._drop(str(error))
                    continue
                with self._news:
                    self._note(batch, received)
                    self._news.notify_all()
        except Over as error:
            with self._news:
                self._over = True
                self._news.notify_all()
            self._tell(("over", str(error)))

    def _drop(self, why: str) -> None:
        """No runner says such a thing, so its job did. Told before anybody finds this empty."""
        self._tell(("refused", why))
        with self._news:
            self.refusals += 1
            self._waiting.clear()
            self._bytes = 0
            self._news.notify_all()

    def _next_batch(self) -> list[Told]:
        batch: list[Told] = []
        size = 0
        for one in self._waiting:
            if batch and (size + one.size > BATCH_BYTES or len(batch) == BATCH_MESSAGES):
                break
            batch.append(one)
            size += one.size
        return batch

    def _note(self, batch: list[Told], received: int) -> None:
        if received < self._received:
            # It had this once, and a power cut took it: readers are to know how much.
            lost = self._received - received
            self._received = received
            self._waiting.appendleft(Told({"type": "missing", "size": lost}, lost, COST))
            self._bytes += COST
            return
        for one in batch:
            if self._received + one.told > received:
                return  # not taken: it comes again
            self._received += one.told
            self._bytes -= one.size
            self._waiting.popleft()
