"""Checkpoints on their way to the controller, beside the job that goes on.

One is being sent; the newest waits, and whatever waited before it is not sent at all. The thread
lives only as long as there is something to send: a job may fork.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import IO, Any

NEEDED = (
    "encodings.idna",
    "corral.runtime.channels.loopback",
    "corral.runtime.files.transfer",
)
Body = tuple[IO[bytes], int]


def load_all(*, secure: bool) -> None:
    """The modules that sending needs: a child that is forked while the thread loads one would wait
    for it for ever."""
    for name in (*NEEDED, *(["ssl"] if secure else [])):
        import_module(name)


class CheckpointSender:
    def __init__(self, send: Callable[[IO[bytes], int], None], *, beside: bool) -> None:
        """`send` returns when the controller has it. `beside` the job, or while it waits."""
        self._send, self._beside = send, beside
        self._lock = threading.Lock()
        self._waiting: Body | None = None
        self._sending = False
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def take(self, obj: Any, dump: Callable[[Any, IO[bytes]], None]) -> None:
        """Returns when it is on this disk, whatever becomes of the object then. Raises what kept an
        earlier one from being sent, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        body = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed when it was sent
        try:
            dump(obj, body)
            size = body.tell()
            if self._beside:
                return self._add(body, size)
            self._send(body, size)
        except BaseException:
            body.close()
            raise
        body.close()

    def finish(self) -> None:
        """Waits until all is sent, or given up."""
        own = threading.current_thread()
        while (thread := self._thread) is not None and thread is not own and thread.is_alive():
            thread.join()
        self._run()  # What no thread came to take, because the job was stopped just there.

    def _add(self, body: IO[bytes], size: int) -> None:
        with self._lock:
            replaced, self._waiting = self._waiting, (body, size)
            begin, self._sending = not self._sending, True
        if replaced is not None:
            replaced[0].close()
        if begin:
            # No daemon: an interpreter that ends waits for it.
            self._thread = threading.Thread(target=self._run, name="corral-checkpoint")
            try:
                self._thread.start()
            except RuntimeError:  # The interpreter ends, or there are no more threads to be had.
                self._run()

    def _run(self) -> None:
        while (body := self._next()) is not None:
            try:
                with body[0]:
                    self._send(*body)
            except Exception as error:
                self._error = error
                with suppress(Exception):  # Whatever the job made of its stderr.
                    words = f"corral: a checkpoint was not kept, the one before stays: {error}"
                    print(words, file=sys.stderr, flush=True)

    def _next(self) -> Body | None:
        with self._lock:
            body, self._waiting = self._waiting, None
            self._sending = body is not None
            return body
