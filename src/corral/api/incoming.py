"""Bodies of requests, whole or in pieces, within their limits of size and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi import Request

from corral.core.errors import BodyTooLarge, RequestTimeout
from corral.core.limits import InputLimits as Limits


async def whole(request: Request, limits: Limits) -> bytes:
    """The body, if all of it arrives within `limits.body_s` and fits `limits.body_bytes`."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and len(announced) < 20 and int(announced) > limits.body_bytes:
        raise _too_large(limits)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_s):
            async for piece in request.stream():
                body += piece
                if len(body) > limits.body_bytes:
                    raise _too_large(limits)
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


def _too_large(limits: Limits) -> BodyTooLarge:
    return BodyTooLarge(
        f"The body is larger than {limits.body_bytes:,} bytes. Upload large "
        "files by PUT /packages, or submit in several requests."
    )
