"""Bodies of requests, whole or in pieces, within their limits of size and time."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from fastapi import Request

from corral.core.errors import BodyTooLarge, RequestTimeout
from corral.core.limits import InputLimits as Limits


async def whole(request: Request, limits: Limits, most: int = sys.maxsize) -> bytes:
    """The body, if all of it arrives within `limits.body_s` and fits the smaller of both sizes."""
    announced = request.headers.get("content-length", "")
    most = min(most, limits.body_bytes)
    if announced.isdigit() and len(announced) < 20 and int(announced) > most:
        raise _too_large(limits, most)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_s):
            async for piece in request.stream():
                body += piece
                if len(body) > most:
                    raise _too_large(limits, most)
    except TimeoutError:
        raise RequestTimeout(f"The body did not arrive within {limits.body_s:g} s.") from None
    return bytes(body)


async def pieces(request: Request, limits: Limits) -> AsyncIterator[bytes]:
    """A long body as it comes, if something of it comes every `limits.body_s`."""
    stream = aiter(request.stream())
    while True:
        try:
            async with asyncio.timeout(limits.body_s):
                piece = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise RequestTimeout(f"Nothing of the body came for {limits.body_s:g} s.") from None
        yield piece


def _too_large(limits: Limits, most: int) -> BodyTooLarge:
    if most < limits.body_bytes:
        return BodyTooLarge(f"The body is larger than {most:,} bytes. Send it in several requests.")
    return BodyTooLarge(
        f"The body is larger than {limits.body_bytes:,} bytes. Upload large "
        "files by PUT /packages, or submit in several requests."
    )
