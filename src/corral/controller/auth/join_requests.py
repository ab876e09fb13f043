"""Machines that found us by themselves and ask to be workers: few, and not for long.

A request is worth nothing until the operator confirms the code that the machine shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import Callable

import structlog
from msgspec import Struct

from corral.controller.auth.tokens import same
from corral.core.errors import Conflict, InvalidRequest, Unauthorized
from corral.joining import pairing

log = structlog.get_logger()

MOST = 20
MOST_ASKED, ASKED_WITHIN_S = 30, 300.0
"""How many may ask, whatever becomes of it: who may ask often enough finds the code of another."""
KEPT_S = 300.0
NUMBER = 64
"""Characters of a number and of a commitment."""
MAX_NAME = 63


class JoinRequest(Struct):
    id: str
    name: str
    address: str
    commitment: str
    number: str
    """Ours."""
    asked_at: float
    revealed: str = ""
    code: str = ""
    admitted: dict[str, str] | None = None
    """What the worker needs to be one; told to it once."""


class JoinRequests:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_id: dict[str, JoinRequest] = {}
        self._news = asyncio.Event()
        self._asked: deque[float] = deque()

    def ask(self, name: str, address: str, commitment: str) -> JoinRequest:
        """The first word of a machine. Of one address only the last counts."""
        _check_number(commitment)
        if not 0 < len(name) <= MAX_NAME or not name.isprintable():
            raise InvalidRequest(f"A machine's name has 1 to {MAX_NAME} printable characters.")
        self._forget_old()
        while self._asked and self._clock() - self._asked[0] > ASKED_WITHIN_S:
            self._asked.popleft()
        if len(self._asked) >= MOST_ASKED:
            log.warning("join_requests_too_many", address=address)
            raise Conflict(
                "Too many machines asked to join lately. Try again in a few minutes, or join with "
                "the string that `corral invite` prints on the controller."
            )
        self._asked.append(self._clock())
        for one in [one for one in self._by_id.values() if one.address == address]:
            if one.admitted is None:
                del self._by_id[one.id]
        if len(self._by_id) >= MOST:
            raise Conflict(
                f"{MOST} machines wait to be confirmed already. Try again in a few minutes, or "
                "join with the string that `corral invite` prints on the controller."
            )
        asked = JoinRequest(
            secrets.token_hex(8), name, address, commitment, pairing.number(), self._clock()
        )
        self._by_id[asked.id] = asked
        return asked

    def reveal(self, request: str, number: str, certificate_sha256: str) -> None:
        """The machine's number, which must be the one it bound itself to."""
        asked = self._get(request)
        _check_number(number)
        if asked.revealed or not same(pairing.commitment(number), asked.commitment):
            self._by_id.pop(request, None)
            raise Unauthorized("This is not the number that was announced. Join again.")
        asked.revealed = number
        asked.code = pairing.code(certificate_sha256, asked.name, number, asked.number)
        log.info("join_requested", name=asked.name, address=asked.address, code=asked.code)

    def pending(self) -> list[JoinRequest]:
        """Those that the operator can confirm, oldest first."""
        self._forget_old()
        return [one for one in self._by_id.values() if one.code and one.admitted is None]

    def find(self, code: str) -> JoinRequest:
        found = [one for one in self.pending() if same(one.code, code)]
        if len(found) == 1:
            return found[0]
        raise InvalidRequest(
            f"No machine that waits shows the code {code[:20]!r}. `corral worker requests` lists "
            "them. Where the codes differ, somebody stands in between: join with the string of "
            "`corral invite` instead."
        )

    def admit(self, asked: JoinRequest, worker_id: str, name: str, credential: str) -> None:
        asked.admitted = {"worker_id": worker_id, "name": name, "credential": credential}
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def answer(self, request: str, number: str, within_s: float) -> dict[str, str] | None:
        """What the operator's word gave the machine; None as long as there is none."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while True:
                    asked = self._get(request)
                    if not asked.revealed or not same(number, asked.revealed):
                        raise Unauthorized("This is not the machine that asked.")
                    if asked.admitted is not None:
                        del self._by_id[request]
                        return asked.admitted
                    await self._news.wait()
        return None

    def age(self, asked: JoinRequest) -> float:
        return self._clock() - asked.asked_at

    def _get(self, request: str) -> JoinRequest:
        self._forget_old()
        asked = self._by_id.get(request)
        if asked is None:
            raise Unauthorized("Nobody waits under this name any more. Join again.")
        return asked

    def _forget_old(self) -> None:
        for one in [one for one in self._by_id.values() if self.age(one) > KEPT_S]:
            del self._by_id[one.id]


def _check_number(text: str) -> None:
    if len(text) != NUMBER or not text.isalnum():
        raise InvalidRequest(f"A number is {NUMBER} hexadecimal digits.")
