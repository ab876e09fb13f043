"""A spawned job process's one connection to its supervisor: orders and cancels in, frames out.

It is both the inbox and the road of `attempt_loop`. A thread reads it: where nothing forks, one
thread more harms nobody, and a cancel must be heard while user code runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from corral.runtime.channels import configuration
from corral.runtime.channels.frames import CANCEL, IDLE, RUNNING, STATE
from corral.runtime.process import system

if TYPE_CHECKING:
    from corral.runtime.cancellation import Cancellation
    from corral.runtime.channels.redaction import Redactor

LOOK_S = 0.05
BEGIN, END = b"<", b">"
"""Behind a mark in a pipe of output: where the output of an attempt begins, and where it ends."""


class LoopbackLine:
    for_children: tuple[int, ...] = ()

    def __init__(self, port: int, token: str, mark: str) -> None:
        self.page = bytearray(3)
        self.redactor: Redactor | None = None
        self._mark = mark_of(mark)
        self._orders: queue.SimpleQueue[tuple[tuple[str, int], bytes]] = queue.SimpleQueue()
        self._name = ("", 0)
        self._cancels: set[tuple[str, int]] = set()
        self._main = threading.get_ident()
        self._pipes = (os.dup(1), os.dup(2))
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(f"{token} line\n".encode())
        self._lines = self._socket.makefile("rb")
        self.config: dict[str, Any] = configuration.decode(self._lines.readline())

    def listen(self) -> None:
        """Once somebody handles the signal that a cancel becomes."""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            for line in self._lines:
                word = json.loads(line)
                name = (word.get("job", ""), word.get("attempt", 0))
                if "document" in word:
                    self._orders.put((name, line))
                    continue
                if word.get("cancel"):
                    self._cancels.add(name)
                    if name != self._name:
                        continue  # too late, or early enough to be seen when it begins
                if self.page[STATE] == RUNNING:
                    system.interrupt(self._main)
        finally:
            os._exit(1)  # The supervisor is gone, and with it everybody who could be told.

    # --- as an inbox ---------------------------------------------------------------------------

    def next(self) -> bytes | None:
        self._name, line = self._orders.get()
        return line

    def cancel_came(self, job: str = "", attempt: int = 0) -> bool:
        return (job, attempt) in self._cancels

    def wait_for(self, process: subprocess.Popen[bytes], cancellation: Cancellation) -> bool:
        """Wait for a script; the first word that it should end is passed on to it, once."""
        asked = False
        while True:
            try:
                process.wait(LOOK_S)
            except subprocess.TimeoutExpired:
                if not asked and cancellation.look():
                    asked = True
                    system.ask_to_end(process)
            else:
                return cancellation.told()

    # --- as a road -----------------------------------------------------------------------------

    def hide(self, redactor: Redactor) -> None:
        self.redactor = redactor

    def capture(self) -> None:
        for kept, fd in zip(self._pipes, (1, 2), strict=True):
            os.dup2(kept, fd)

    def begin(self) -> None:
        self._write_marks(BEGIN)
        self.page[CANCEL] = 0
        self.page[STATE] = RUNNING

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def end(self, data: bytes) -> None:
        self.page[STATE] = IDLE
        self._write_marks(END)
        self.send(data)
        self._cancels.discard(self._name)

    def _write_marks(self, kind: bytes) -> None:
        for fd in self._pipes:
            with contextlib.suppress(OSError):  # a job may close whatever it can name
                if sys.platform != "win32":  # whose pipes are
                    os.set_blocking(fd, True)
                os.write(fd, self._mark + kind)


def mark_of(token: str) -> bytes:
    return b"\0" + token.encode()


class Marks:
    """The supervisor's side. Not every system says how much a pipe holds; whoever has read the
    mark at an attempt's end has read all its output. What lies between attempts is left out."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._inside = False
        self._held = b""

    def parts(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Output in its order; True with the last of an attempt, which may be empty."""
        data = self._held + data
        size = len(self._mark)
        while (at := data.find(self._mark)) >= 0 and len(data) > at + size:
            before, kind, data = data[:at], data[at + size : at + size + 1], data[at + size + 1 :]
            if kind == END and self._inside:
                yield before, True
            self._inside = kind == BEGIN
        keep = self._begun(data)
        self._held = data[len(data) - keep :]
        if self._inside and len(data) > keep:
            yield data[: len(data) - keep], False

    def rest(self) -> bytes:
        """What was held back because it could have become a mark."""
        rest, self._held = self._held if self._inside else b"", b""
        return rest

    def _begun(self, data: bytes) -> int:
        """How many bytes at the end may be the beginning of a mark."""
        at = data.rfind(b"\0", max(len(data) - len(self._mark), 0))
        while at >= 0:
            if self._mark.startswith(data[at:]):
                return len(data) - at
            at = data.rfind(b"\0", max(len(data) - len(self._mark), 0), at)
        return 0
