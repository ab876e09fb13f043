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
import threading
from typing import TYPE_CHECKING, Any

from corral.runtime.channels import configuration
from corral.runtime.channels.frames import CANCEL, IDLE, RUNNING, STATE, output_frame
from corral.runtime.channels.marks import BEGIN, END, written
from corral.runtime.process import system

if TYPE_CHECKING:
    from corral.runtime.cancellation import Cancellation
    from corral.runtime.channels.redaction import Redactor

LOOK_S = 0.05


class LoopbackLine:
    for_children: tuple[int, ...] = ()

    def __init__(self, port: int, token: str, mark: str) -> None:
        self.page = bytearray(3)
        self.redactor: Redactor | None = None
        self._mark = mark.encode()
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

    def capture(self) -> None:
        for kept, fd in zip(self._pipes, (1, 2), strict=True):
            os.dup2(kept, fd)

    def begin(self) -> None:
        self._write_marks(BEGIN)
        self.page[CANCEL] = 0
        self.page[STATE] = RUNNING

    def tell(self, stream: str, words: str) -> None:
        data = words.encode("utf-8", "replace")
        self.send(output_frame(stream, self.redactor.data(data) if self.redactor else data))

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
                system.make_blocking(fd)
                os.write(fd, written(self._mark, kind))
