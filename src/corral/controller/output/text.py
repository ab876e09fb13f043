"""What an attempt wrote as plain bytes, readable from any offset, out of the frames of its spool.

Frames say nothing about where in the text they lie, so marks are kept on the way: a second look
goes on from the nearest one.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator

from corral.controller.output.spool import Spool
from corral.core.frames import OutputFrame, decode_frame
from corral.core.job import JobId

MARK_EVERY = 4 << 20
KEPT_TEXTS = 64

_Key = tuple[JobId, int, str]


class OutputText:
    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._marks: OrderedDict[_Key, list[tuple[int, int]]] = OrderedDict()
        """By text: places in it, and the offsets in the spool where they lie."""

    async def size(self, job: JobId, attempt: int, stream: str) -> int:
        end = self._of((job, attempt, stream))[-1][0]
        async for at, piece in self._walk((job, attempt, stream), end):
            end = at + len(piece)
        return end

    async def read(
        self, job: JobId, attempt: int, stream: str, start: int, end: int
    ) -> AsyncIterator[bytes]:
        async for at, piece in self._walk((job, attempt, stream), start):
            if at >= end:
                return
            wanted = piece[max(0, start - at) : end - at]
            if wanted:
                yield wanted

    def _of(self, key: _Key) -> list[tuple[int, int]]:
        marks = self._marks.setdefault(key, [(0, 0)])
        self._marks.move_to_end(key)
        if len(self._marks) > KEPT_TEXTS:
            self._marks.popitem(last=False)
        return marks

    async def _walk(self, key: _Key, start: int) -> AsyncIterator[tuple[int, bytes]]:
        """Pieces of the text and where each begins, from a place at or before `start` on."""
        marks = self._of(key)
        at, offset = marks[bisect_right(marks, start, key=lambda mark: mark[0]) - 1]
        job, attempt, stream = key
        while True:
            piece = self._spool.read(job, attempt, offset)
            if not piece.lines and not piece.skipped:
                return
            texts = [gap(piece.skipped)] if piece.skipped else []
            for line in piece.lines:
                frame = decode_frame(line)
                if isinstance(frame, OutputFrame) and stream in ("", frame.stream):
                    texts.append(frame.data or frame.text.encode())
            text = b"".join(texts)
            yield at, text
            at, offset = at + len(text), piece.next_offset
            if at - marks[-1][0] >= MARK_EVERY:
                marks.append((at, offset))
            await asyncio.sleep(0)  # a long text is read in many turns of the event loop


def gap(skipped: int) -> bytes:
    """What stands where some of the output is missing."""
    return f"\n[… {skipped} bytes left out …]\n".encode()
