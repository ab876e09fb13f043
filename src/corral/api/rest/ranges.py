"""Bytes with ranges: artifacts, results and output, as much of them as was asked for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from corral.core.errors import RangeNotSatisfiable

CHUNK = 256 << 10
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)

Read = Callable[[int, int], AsyncIterator[bytes]]


def wanted(header: str | None, total: int) -> tuple[int, int] | None:
    """The one range that is asked for, from its first byte to behind its last; None for all.

    Several ranges, and what is no range at all, are answered with everything, as HTTP allows.
    """
    match = _RANGE.fullmatch((header or "").strip())
    if match is None or match[1] == match[2] == "":
        return None
    if not match[1]:
        start, end = max(0, total - int(match[2])), total
    else:
        start = int(match[1])
        if match[2] and int(match[2]) < start:
            return None
        end = min(total, int(match[2]) + 1) if match[2] else total
    if start >= end:
        raise RangeNotSatisfiable(
            f"There are {total:,} bytes; none of those asked for.", details={"size": total}
        )
    return start, end


def ranged(
    request: Request, read: Read, total: int, *, media_type: str, headers: dict[str, str]
) -> Response:
    """200 with everything or 206 with the range that was asked for."""
    found = wanted(request.headers.get("range"), total)
    headers = {**headers, "accept-ranges": "bytes", "x-content-type-options": "nosniff"}
    if found is None:
        start, end, status = 0, total, 200
    else:
        (start, end), status = found, 206
        headers["content-range"] = f"bytes {start}-{end - 1}/{total}"
    headers["content-length"] = str(end - start)
    return StreamingResponse(read(start, end), status, headers=headers, media_type=media_type)


def file_reader(path: Path) -> Read:
    async def read(start: int, end: int) -> AsyncIterator[bytes]:
        with open(path, "rb") as file:
            file.seek(start)
            while start < end:
                piece = await asyncio.to_thread(file.read, min(CHUNK, end - start))
                if not piece:
                    return
                start += len(piece)
                yield piece

    return read


def bytes_reader(data: bytes) -> Read:
    async def read(start: int, end: int) -> AsyncIterator[bytes]:
        yield data[start:end]

    return read


def attachment(name: str) -> dict[str, str]:
    """A browser saves it and never shows it: it came from a job."""
    return {"content-disposition": f"attachment; filename*=utf-8''{quote(name, safe='')}"}
