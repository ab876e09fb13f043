"""One asset on its way to this machine: in pieces that survive a cut, and proven at the end.

The controller sends the bytes itself or points to a bucket by a URL that is good for a short time.
Blocking, for a thread of its own. No URL of a bucket ever goes into a message: it opens the door.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import quote, urlsplit

from corral.runtime.failures import AttemptFailed
from corral.runtime.files.transfer import connection_to

STALLED_S = 120.0
"""How long nothing may come before it is given up."""
SOCKET_TIMEOUT_S = 30.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
REFUSALS = 3
"""So often in a row a bucket may refuse a fresh URL."""
BLOCK = 1 << 18
_STARTS = re.compile(r"bytes (\d+)-")


NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Refused(Exception):
    """The bucket did not take the URL: expired by now, perhaps. A fresh one may do."""


class Abandoned(Exception):
    """No attempt wants it any more."""


class Ticket(NamedTuple):
    """What lets an attempt fetch: its way to the controller and the token for it."""

    url: str
    certificate: str
    job: str
    attempt: int
    token: str


class Download:
    def __init__(
        self,
        sha256: str,
        size: int,
        into: Path,
        *,
        tickets: Callable[[], list[Ticket]],
    ) -> None:
        self._sha256, self._size, self._into = sha256, size, into
        self._tickets = tickets
        self._spent: set[Ticket] = set()
        self._counted = hashlib.sha256()
        self._stopped = threading.Event()
        self._open: http.client.HTTPConnection | None = None
        self.have = 0
        """Bytes that are here, for whoever asks how far it is."""

    def stop(self) -> None:
        """From any thread: nobody waits for it any more, so neither does it."""
        self._stopped.set()
        sock = self._open.sock if self._open is not None else None
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        """Returns when the whole file is at its place and is what was asked for."""
        for _ in range(2):
            with open(self._into, "a+b") as file:
                self._go_on(file)
                self._fetch(file)
            found = self._counted.hexdigest()
            if found == self._sha256:
                return
            self._into.unlink()
        raise AttemptFailed(
            "asset_corrupt",
            f"The asset {self._sha256} came twice with other bytes, whose sha256 is {found}. Put "
            "the file again, then retry the job.",
        )

    def _go_on(self, file: IO[bytes]) -> None:
        """Behind what an earlier try, perhaps of an earlier agent, has left."""
        self._counted, self.have = hashlib.sha256(), 0
        file.seek(0)
        while block := file.read(BLOCK):
            self._counted.update(block)
            self.have += len(block)
        if self.have > self._size:
            self._begin_again(file)

    def _begin_again(self, file: IO[bytes]) -> None:
        file.truncate(0)
        self._counted, self.have = hashlib.sha256(), 0

    def _fetch(self, file: IO[bytes]) -> None:
        until, wait_s, refusals = time.monotonic() + STALLED_S, FIRST_WAIT_S, 0
        while self.have < self._size:
            before = self.have
            try:
                self._once(file)
                continue
            except (Refused, OSError, http.client.HTTPException) as error:
                if isinstance(error, OSError) and error.errno in NO_ROOM:
                    raise no_room(self._sha256, self._size) from error
                if self.have > before:
                    until, wait_s, refusals = time.monotonic() + STALLED_S, FIRST_WAIT_S, 0
                refusals += isinstance(error, Refused)
                if refusals > REFUSALS or time.monotonic() + wait_s > until:
                    said = str(error) if isinstance(error, Refused) else type(error).__name__
                    raise AttemptFailed(
                        "transfer_failed",
                        f"The asset {self._sha256} could not be fetched beyond byte "
                        f"{self.have:,} of {self._size:,}: {said}.",
                    ) from None
            self._stopped.wait(wait_s)
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)
        file.flush()
        os.fsync(file.fileno())

    def _once(self, file: IO[bytes]) -> None:
        """As far as one connection goes; short of the end raises."""
        ticket = self._ticket()
        address = f"{ticket.url}/attempts/{quote(ticket.job, safe='')}/{ticket.attempt}"
        told = {"Authorization": f"Bearer {ticket.token}"}
        with (
            closing(self._connect(ticket.url, ticket.certificate)) as controller,
            closing(self._ask(controller, f"{address}/assets/{self._sha256}", told)) as answer,
        ):
            if answer.status in (401, 403, 409):
                self._spent.add(ticket)  # that attempt is over; another may want it still
                return
            if answer.status not in (302, 303, 307):
                return self._take(answer, file, "the controller")
            place = answer.headers["Location"]
        with (
            closing(self._connect(place, "")) as bucket,
            closing(self._ask(bucket, place, {})) as answer,
        ):
            if answer.status in (400, 401, 403):
                raise Refused(f"the bucket answered {answer.status}")
            self._take(answer, file, "the bucket")

    def _connect(self, address: str, certificate: str) -> http.client.HTTPConnection:
        self._open = connection_to(address, certificate, SOCKET_TIMEOUT_S)
        return self._open

    def _ticket(self) -> Ticket:
        for ticket in () if self._stopped.is_set() else self._tickets():
            if ticket not in self._spent:
                return ticket
        raise Abandoned

    def _ask(
        self, connection: http.client.HTTPConnection, address: str, told: dict[str, str]
    ) -> http.client.HTTPResponse:
        parts = urlsplit(address)
        if self.have:
            told = {**told, "Range": f"bytes={self.have}-"}
        query = f"?{parts.query}" if parts.query else ""
        connection.request("GET", f"{parts.path}{query}", headers=told)
        return connection.getresponse()

    def _take(self, answer: http.client.HTTPResponse, file: IO[bytes], who: str) -> None:
        if answer.status in (404, 410):
            raise AttemptFailed(
                "asset_missing",
                f"The asset {self._sha256} is not there any more, says {who}. Put the file again, "
                "then retry the job.",
            )
        if answer.status == 416:
            return self._begin_again(file)
        if answer.status not in (200, 206):
            raise http.client.HTTPException(f"{who} answered {answer.status}")
        if self.have and _start(answer) != self.have:
            self._begin_again(file)
        while block := answer.read1(BLOCK):
            if self.have + len(block) > self._size:
                self._begin_again(file)
                raise http.client.HTTPException(f"{who} sent more than there is")
            file.write(block)
            self._counted.update(block)
            self.have += len(block)
            if self._stopped.is_set() or not self._tickets():
                raise Abandoned
        if self.have < self._size:
            raise http.client.IncompleteRead(b"", self._size - self.have)


def no_room(sha256: str, size: int) -> AttemptFailed:
    return AttemptFailed(
        "asset_no_room",
        f"The asset {sha256} has {size:,} bytes, and this worker's disk has no room for it. Free "
        "some there, or give the worker a smaller worker.assets_gb.",
    )


def _start(answer: http.client.HTTPResponse) -> int:
    """The byte that an answer begins with. Some servers say 200 where they send a part."""
    found = _STARTS.match(answer.headers.get("Content-Range", ""))
    return int(found[1]) if found else 0
