"""A progress bar in the last line of the terminal, below output that passes through untouched."""

from __future__ import annotations

import shutil
import sys

from corral.core.text import printable

_CLEAR = "\r\x1b[2K"


class Bar:
    """Draws on stderr while the job's own output goes where it belongs. It steps aside for every
    write and waits for a line to end before it comes back, so that a job may draw bars itself."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._out = sys.stderr
        self._enabled = enabled and self._out.isatty()
        self._text = ""
        self._drawn = False
        self._in_line = False

    def update(self, fraction: float | None, message: str) -> None:
        self._text = render(fraction, message, shutil.get_terminal_size().columns)
        self._draw()

    def write(self, stream: str, data: bytes, skipped: int) -> None:
        """Passes a job's output on, byte for byte, and says where something of it is missing."""
        if skipped:
            data = f"\n[… {skipped} bytes left out …]\n".encode() + data
        self.clear()
        target = sys.stderr if stream == "stderr" else sys.stdout
        target.flush()
        target.buffer.write(data)
        target.buffer.flush()
        if data:
            self._in_line = not data.endswith(b"\n")
        self._draw()

    def clear(self) -> None:
        if self._drawn:
            self._out.write(_CLEAR)
            self._out.flush()
            self._drawn = False

    def close(self) -> None:
        self.clear()
        self._text = ""

    def _draw(self) -> None:
        if self._enabled and self._text and not self._in_line:
            self._out.write(f"{_CLEAR}{self._text}")
            self._out.flush()
            self._drawn = True


def render(fraction: float | None, message: str, columns: int) -> str:
    """The bar as text that fits into one line.

    >>> render(0.5, "epoch 2", 80)
    '▕██████████··········▏  50 %  epoch 2'
    """
    line = printable(" ".join(message.split()))
    if fraction is not None:
        share = min(max(fraction, 0.0), 1.0)
        full = round(share * 20)
        line = f"▕{'█' * full}{'·' * (20 - full)}▏ {share * 100:3.0f} %  {line}".rstrip()
    return line[: max(columns - 1, 10)]
