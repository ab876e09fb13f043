"""This attempt's way to its controller: its order, and what it posts, for as long as it takes."""

from __future__ import annotations

import http.client
import os
from typing import Any

from corral.runtime.failures import TransferFailed
from corral.runtime.files.transfer import Transfer, check_answer
from corral.runtime.standalone.ticket import AttemptOrder, AttemptTicket, decode

PATIENCE_S = 24 * 3600.0
"""How long a controller may be away before a process that nobody asks for any more ends itself."""
ASK_S = 15.0
"""How long an answer is waited for when there is nothing to tell."""

PROCESS = os.urandom(8).hex()
"""This process: another one may have been started for the same attempt."""

Over = TransferFailed
"""The controller does not want to hear more: the attempt is over, or never was this one's."""


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
        def fetch(connection: http.client.HTTPConnection) -> AttemptOrder:
            connection.request("GET", f"{self._root}/order", headers=self._headers())
            answer = connection.getresponse()
            check_answer(answer, "order")
            return decode(AttemptOrder, answer.read())

        found: AttemptOrder = self._persist("order", fetch)
        return found

    def post(self, after: int, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Without messages: where to begin."""
        return self._answer({"after": after, "process": PROCESS, "messages": messages})

    def ask(self) -> dict[str, Any]:
        """Whether there is anything to know; waits a while for it."""
        return self._answer({"wait_s": ASK_S})

    def _answer(self, batch: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._persist("messages", lambda _: self._tell("messages", batch))
        return found
