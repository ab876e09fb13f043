"""Standard output and errors in the order in which they were written. Each is a pipe of its own,
and of two pipes that both hold something nobody can tell which was written first. So whoever
turns from one to the other waits until the other's is taken out of its pipe.
"""

from __future__ import annotations

import fcntl
import io
import os
import struct
import sys
import termios
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO

assert sys.platform != "win32"

LONGEST_S, LOOK_S = 5.0, 0.00005
"""A supervisor that takes longer is stopped, or has much to do: then the order may be lost."""


class Turns:
    """Whose turn it is of two streams. `hurry` is the end of a pipe that wakes the supervisor."""

    def __init__(self, hurry: int) -> None:
        self._hurry = hurry
        self._pipes = {fd: os.fstat(fd).st_ino for fd in (1, 2, hurry)}
        self.of = 1

    def turn_to(self, fd: int) -> None:
        other, self.of = self.of, fd
        until = 0.0
        try:
            while held(other):
                now = time.monotonic()
                if not until:
                    if not (self._is_ours(other) and self._is_ours(self._hurry)):
                        return  # the job has put something else there
                    os.write(self._hurry, b"!")
                    until = now + LONGEST_S
                elif now > until:
                    return
                time.sleep(LOOK_S)
        except OSError:
            return  # closed, or no pipe: then nothing has to be waited for

    def _is_ours(self, fd: int) -> bool:
        return os.fstat(fd).st_ino == self._pipes[fd]


class OrderedFile(io.FileIO):
    def __init__(self, fd: int, turns: Turns) -> None:
        super().__init__(fd, "w", closefd=False)
        self._number, self._turns = fd, turns

    def write(self, data: Any) -> Any:
        if self._turns.of != self._number:
            self._turns.turn_to(self._number)
        return super().write(data)


def order_streams(hurry: int) -> None:
    """Of a script's Python, before anything of the user's runs."""
    turns = Turns(hurry)
    for fd, name in ((1, "stdout"), (2, "stderr")):
        found: TextIO = getattr(sys, name)
        file = OrderedFile(fd, turns)
        file.name = found.name
        unbuffered = isinstance(found.buffer, io.FileIO)
        made = io.TextIOWrapper(
            file if unbuffered else io.BufferedWriter(file),
            found.encoding,
            found.errors,
            line_buffering=bool(found.line_buffering),
            write_through=unbuffered,
        )
        made.__dict__["mode"] = "w"
        setattr(sys, name, made)
        setattr(sys, f"__{name}__", made)


def held(fd: int) -> int:
    """Bytes that are in a pipe."""
    packed = fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0")
    return int(struct.unpack("=i", packed)[0])
