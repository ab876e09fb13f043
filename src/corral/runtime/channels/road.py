"""The road from a forked job process to the agent: captured output and the job's own words.

Two processes share it. The supervisor pumps while a job runs, in a process of its own, so that
C code which holds Python's lock can print more than a pipe takes. The attempt process drains what
is left itself before it ends an attempt, so that an attempt without output wakes nobody. A lock
keeps their writes apart, and neither ever holds output that the other does not see: what is not
yet framed is still in the pipe.
"""

from __future__ import annotations

import mmap
import os
import select
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from corral.runtime.channels import in_order
from corral.runtime.channels.frames import (
    CHUNK,
    ENDING,
    IDLE,
    PUMPING,
    RUNNING,
    STATE,
    WAITING,
    output_frame,
    words_to_frames,
)
from corral.runtime.process import posix

if TYPE_CHECKING:
    from corral.runtime.channels.redaction import Redactor, StreamRedactor

assert sys.platform != "win32"

WORDS_READ = 1 << 20
"""More than the pipe of words ever holds, so that one read never cuts a line in two."""


class Road:
    """Captured pipes, the agent's end, and the page and lock that both processes share."""

    def __init__(self, fds: Sequence[int]) -> None:
        """The files that `sandbox.start` opened, here or in the program that executed this one."""
        self._agent_fd, page, lock, self._screen_fd, *pipes = fds
        self.output, self._output_in, self.errors, self._errors_in, *words = pipes
        self.words, self.words_in, self.hurry, self.hurry_in = words
        """What is written into the last wakes the supervisor, which else lets output gather."""
        self.page = posix.share(page, mmap.PAGESIZE)
        self._lock = posix.Lock(lock)
        self.for_children = (self.words_in, self.hurry_in)
        self._streams = (("stdout", self.output), ("stderr", self.errors))
        self.redactor: Redactor | None = None
        self._screen: StreamRedactor | None = None
        self._poll = select.poll()
        for fd in (self.output, self.errors, self.words):
            self._poll.register(fd, select.POLLIN)

    def hide(self, redactor: Redactor) -> None:
        """Before anything was said, in both processes: from here on no secret's value passes."""
        from corral.runtime.channels.redaction import StreamRedactor

        self.redactor = redactor
        self._screen = StreamRedactor(
            redactor, len(self._streams), partial(posix.share, self._screen_fd)
        )

    # --- both processes ------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        with self._lock:
            self._write(data)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._agent_fd, view) :]
            except BlockingIOError:
                select.select((), (self._agent_fd,), ())

    def _frames(self, *, helping: bool) -> tuple[int, list[bytes]]:
        """How many bytes, and their frames: one helping of each pipe, or all that is in them now.
        Not what still arrives: a process that a job left behind may print for ever."""
        moved, frames = 0, []
        for number, (stream, fd) in enumerate(self._streams):
            left = 1 if helping else in_order.held(fd)
            while left > 0 and (data := _read(fd, CHUNK if helping else min(left, CHUNK))):
                moved += len(data)
                left -= len(data)
                if self._screen is not None:
                    data = self._screen.pass_on(number, data)
                if data:
                    frames.append(output_frame(stream, data))
        if data := _read(self.words, WORDS_READ):
            moved += len(data)
            frames += words_to_frames(data, self.redactor)
        return moved, frames

    def _drain(self) -> list[bytes]:
        return self._frames(helping=False)[1]

    def _rest(self) -> list[bytes]:
        """Frames for what was held back, when nothing more can follow."""
        if self._screen is None:
            return []
        rests = [(name, self._screen.rest(n)) for n, (name, _) in enumerate(self._streams)]
        return [output_frame(name, data) for name, data in rests if data]

    # --- the supervisor ------------------------------------------------------------------------

    def close_inputs(self) -> None:
        """The supervisor only reads."""
        for fd in (self._output_in, self._errors_in, self.words_in, self.hurry_in):
            os.close(fd)

    def pump(self) -> int:
        """Frame one helping of each pipe; how many bytes that was."""
        with self._lock:
            self.page[PUMPING] = 1
            moved, frames = self._frames(helping=True)
            # Between attempts there is nobody to tell: what a thread prints then is dropped.
            if frames and self.page[STATE] != IDLE:
                self._write(b"".join(frames))
            self.page[PUMPING] = 0
        return moved

    def last(self, data: bytes) -> None:
        """The supervisor's word on an attempt whose process is gone, after all its output."""
        with self._lock:
            frames = []
            while helping := self._drain():
                frames += helping
                if len(frames) > 64:
                    self._write(b"".join(frames))
                    frames = []
            frames += self._rest()
            # Killed while it wrote its own end: that line is cut, so start a new one.
            cut = b"\n" if self.page[STATE] == ENDING else b""
            self._write(cut + b"".join(frames) + data)
            self.page[STATE] = IDLE

    # --- the attempt process -------------------------------------------------------------------

    def capture(self) -> None:
        """Point descriptors 1 and 2 at our pipes; a job may have closed or replaced them."""
        os.dup2(self._output_in, 1)
        os.dup2(self._errors_in, 2)
        os.set_blocking(1, True)
        os.set_blocking(2, True)

    def begin(self) -> None:
        """An attempt begins; what an earlier one printed late does not belong to it, also where
        the supervisor has just taken it out of a pipe and is about to ask whose it is."""
        if self._poll.poll(0) or self.page[PUMPING]:
            with self._lock:
                self._drain()
        if self._screen is not None:
            with self._lock:
                self._rest()
        self.page[STATE] = RUNNING

    def end(self, data: bytes) -> None:
        """All output of the attempt, then its last frame."""
        self.page[WAITING] = 1
        with self._lock:
            if self._poll.poll(0):
                self._write(b"".join(self._drain()))
            if self._screen is not None:
                self._write(b"".join(self._rest()))
            self.page[STATE] = ENDING
            self._write(data)
            self.page[STATE] = IDLE
            self.page[WAITING] = 0


def _read(fd: int, size: int) -> bytes:
    try:
        return os.read(fd, size)
    except BlockingIOError:
        return b""
