"""The outer of a runner's two processes where nothing is forked: it starts the inner one anew.

What a forked runner shares as memory, locks and inherited descriptors is here one connection over
loopback, with a token. Output comes through two ordinary pipes; marks in them show where an
attempt's output begins and ends. It runs no user code, as the other supervisor.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from typing import IO

from corral.runtime.channels import configuration
from corral.runtime.channels.frames import (
    CHUNK,
    COALESCE_S,
    FETCHING,
    STARTED,
    error_frame,
    output_frame,
    words_to_frames,
)
from corral.runtime.channels.line import Marks, mark_of
from corral.runtime.channels.redaction import Redactor, StreamRedactor
from corral.runtime.process import system

ARRIVE_S = 30.0
DRAIN_S = 2.0
"""How long the last output of a dead process is waited for, when all that could print are gone."""


def main() -> int:
    agent = sys.stdin.buffer
    line = agent.readline()
    if not line:
        return 0
    for number in system.SIGNALS:
        signal.signal(number, lambda *_: None)  # A job may signal its whole group; we stay.
    system.hold_descendants()
    supervisor = SpawningSupervisor(line)
    supervisor.start()
    for line in iter(agent.readline, b""):
        supervisor.heard(line)
    system.kill_descendants()  # the agent is gone
    os._exit(0)  # Threads still read from pipes that nobody writes to any more.


class SpawningSupervisor:
    def __init__(self, config: bytes) -> None:
        told = configuration.decode(config)
        self._config = config
        self._python: str = told["python"]
        self._environ: dict[str, str] = told.get("environ") or {}
        self._redactor = Redactor(told["secrets"]) if told.get("secrets") else None
        self._screen = StreamRedactor(self._redactor, 2) if self._redactor else None
        self._token = secrets.token_hex(16)
        self._mark = secrets.token_hex(16)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._writing = threading.Lock()
        self.arrived = threading.Event()
        self._line: socket.socket | None = None
        self._running: tuple[str, int] | None = None
        self._cancelled = False
        self._started = threading.Event()
        """The agent was told that the attempt has started; its output waits for that."""
        self._hurry = threading.Event()
        self._hung_up = threading.Event()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [self._python, "-I", sys.argv[0], "spawned", str(self._server.getsockname()[1])],
            env={**os.environ, **self._environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        # Not as an argument and not in its environment, which others on the machine may see.
        self._process.stdin.write(f"{self._token} {self._mark}\n".encode())
        self._process.stdin.close()
        self._pumps = [
            Pump(self, number, name, pipe, mark_of(self._mark))
            for number, (name, pipe) in enumerate(
                (("stdout", self._process.stdout), ("stderr", self._process.stderr))
            )
        ]
        for work in (self._accept, self._watch, *(pump.run for pump in self._pumps)):
            threading.Thread(target=work, daemon=True).start()
        if not self.arrived.wait(ARRIVE_S):
            raise TimeoutError(f"the job process did not report within {ARRIVE_S:g} s")

    # --- what the agent says -------------------------------------------------------------------

    def heard(self, line: bytes) -> None:
        word = json.loads(line)
        if "document" in word:
            self._running, self._cancelled = (word["job"], word["attempt"]), False
        elif word.get("cancel") and (word["job"], word["attempt"]) == self._running:
            self._cancelled = True
        if self._line is not None:
            try:
                self._line.sendall(line)
            except OSError:
                return  # It is gone, which `_watch` reports.

    # --- what the job process says -------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            caller, _ = self._server.accept()
            threading.Thread(target=self._listen, args=(caller,), daemon=True).start()

    def _listen(self, caller: socket.socket) -> None:
        with caller, caller.makefile("rb") as lines:
            try:
                token, _, kind = lines.readline(100).strip().partition(b" ")
                if not hmac.compare_digest(token, self._token.encode()):
                    return
                if kind == b"line" and self._line is None:
                    self._line = caller
                    caller.sendall(self._config)
                    self.arrived.set()
                    try:
                        self._hear_frames(lines)
                    finally:
                        self._hung_up.set()
                elif kind == b"words":
                    for line in lines:
                        if self._running is not None:
                            self.write(*words_to_frames(line, self._redactor))
                        caller.sendall(b"\n")  # it is on its way: the attempt may end
            except OSError:
                return

    def _hear_frames(self, lines: IO[bytes]) -> None:
        for line in lines:
            if line.startswith((b'{"frame":"result"', b'{"frame":"error"')):
                self._end(line)
            else:
                self.write(line)
                if line == STARTED:
                    self._started.set()
                elif line == FETCHING:
                    self._started.clear()

    def _end(self, line: bytes) -> None:
        """The process has marked the end of its output before it said this."""
        self._hurry.set()
        self._started.set()  # A warm process, as the next attempts find it, need not say so.
        for pump in self._pumps:
            pump.ended.wait(DRAIN_S)
            pump.ended.clear()
        self._hurry.clear()
        self._running = None
        self.write(line)

    # --- what the agent hears ------------------------------------------------------------------

    def write(self, *frames: bytes) -> None:
        data = b"".join(frames)
        with self._writing:
            while data:
                data = data[os.write(1, data) :]

    def output(self, number: int, stream: str, data: bytes, *, last: bool) -> None:
        if self._screen is not None:
            data = self._screen.pass_on(number, data)
            if last:
                data += self._screen.rest(number)
        if data:
            self._started.wait(DRAIN_S)
            self.write(output_frame(stream, data))

    def pause(self) -> None:
        """Small pieces of output are framed together, but an end does not wait for that."""
        self._hurry.wait(COALESCE_S)

    # --- the end -------------------------------------------------------------------------------

    def _watch(self) -> None:
        code = self._process.wait()
        # Whoever still holds the pipes would keep their ends from being seen.
        system.kill_descendants()
        self._hurry.set()
        self._started.set()
        for last in (*(pump.closed for pump in self._pumps), self._hung_up):
            last.wait(DRAIN_S)
        if self._running is not None:
            from corral.runtime.failures import died

            failure = died(code, cancelled=self._cancelled)
            self.write(error_frame(failure, retire=True))
        os._exit(1 if code else 0)


class Pump:
    """One pipe of the job process, read by a thread."""

    def __init__(
        self, supervisor: SpawningSupervisor, number: int, stream: str, pipe: IO[bytes], mark: bytes
    ) -> None:
        self._supervisor, self._number, self._stream = supervisor, number, stream
        self._pipe, self._marks = pipe, Marks(mark)
        self.ended = threading.Event()
        self.closed = threading.Event()

    def run(self) -> None:
        while data := self._pipe.read(CHUNK):
            if not self._supervisor.arrived.is_set():
                os.write(2, data)  # No word of a job: it could not even begin.
                continue
            for part, last in self._marks.parts(data):
                self._supervisor.output(self._number, self._stream, part, last=last)
                if last:
                    self.ended.set()
            if len(data) < CHUNK:
                self._supervisor.pause()
        self._supervisor.output(self._number, self._stream, self._marks.rest(), last=True)
        self.ended.set()
        self.closed.set()
