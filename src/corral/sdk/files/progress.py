"""How far a large transfer is, on stderr: a line that is drawn anew on a terminal, elsewhere one
when it begins and one when it is done. Small ones say nothing."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType

from corral.core.text import printable, size_of, span

SHOWN_FROM = 5_000_000
DRAWN_EVERY_S = 0.2
_CLEAR = "\r\x1b[2K"


class Progress:
    """`with Progress("sending data.bin", size) as progress:`, which is told of each piece."""

    def __init__(self, what: str, total: int) -> None:
        self._what = printable(what)
        self._total, self._done = total, 0
        self._out = sys.stderr if total >= SHOWN_FROM else None
        self._drawn_at = 0.0
        self._begun = time.monotonic()

    def __enter__(self) -> Progress:
        if self._out is not None and not self._out.isatty():
            self._say(f"{self._what} ({size_of(self._total)}) …")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._out is None:
            return
        if self._out.isatty():
            self._out.write(_CLEAR)
            self._out.flush()
        if kind is None:
            took = span(time.monotonic() - self._begun)
            self._say(f"{self._what} ({size_of(self._total)}): done in {took}")

    def advance(self, size: int) -> None:
        """What is sent again after an interruption counts again; more than all is never shown."""
        self._done += size
        now = time.monotonic()
        if self._out is None or now - self._drawn_at < DRAWN_EVERY_S or not self._out.isatty():
            return
        self._drawn_at = now
        share = min(self._done / self._total, 1.0)
        done, total = size_of(min(self._done, self._total)), size_of(self._total)
        line = f"corral: {self._what}: {share:.0%}, {done} of {total}"
        self._out.write(_CLEAR + line[: max(shutil.get_terminal_size().columns - 1, 10)])
        self._out.flush()

    def _say(self, line: str) -> None:
        assert self._out is not None
        self._out.write(f"corral: {line}\n")
        self._out.flush()
