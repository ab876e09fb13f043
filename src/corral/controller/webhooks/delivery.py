"""One POST to a webhook: signed, bounded in time, and read no further than the status.

Written on plain streams: there is no connection to keep, no redirect to follow and no body to
read, and a time limit that holds for the whole of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ssl

from corral import __version__
from corral.core.webhook import Address

STATUS_LIMIT = 8 * 1024
INTERIM = 5
"""Interim answers (1xx) that are read past before the real one."""


class NotDelivered(Exception):
    """What went wrong, in words for a log."""


def signature(secret: str, at: int, body: bytes) -> str:
    """`t=…,v1=…`: the time, and HMAC-SHA256 over the time, a dot and the body. A receiver that
    compares both knows who wrote it, and that it is not an old one sent again."""
    signed = hmac.new(secret.encode(), b"%d." % at + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={signed}"


async def post(address: Address, headers: dict[str, str], body: bytes, timeout_s: float) -> None:
    """Returns when the other side said 2xx; NotDelivered for everything else."""
    try:
        async with asyncio.timeout(timeout_s):
            status = await _post(address, headers, body)
    except TimeoutError:
        raise NotDelivered(f"no answer within {timeout_s:g} s") from None
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        raise NotDelivered(str(error) or type(error).__name__) from None
    if 300 <= status < 400:
        raise NotDelivered(f"it answered {status}; redirects are not followed")
    if not 200 <= status < 300:
        raise NotDelivered(f"it answered {status}")


async def _post(address: Address, headers: dict[str, str], body: bytes) -> int:
    context = ssl.create_default_context() if address.secure else None
    reader, writer = await asyncio.open_connection(
        address.host, address.port, ssl=context, limit=STATUS_LIMIT
    )
    try:
        lines = {
            "Host": address.netloc,
            "User-Agent": f"corral/{__version__}",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
            **headers,
        }
        head = f"POST {address.target} HTTP/1.1\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(head.encode("ascii") + b"\r\n" + body)
        await writer.drain()
        for _ in range(INTERIM):
            status = await _status(reader)
            if status >= 200:
                return status
            while (await reader.readline()).strip():
                pass
        raise ValueError("it answers, but never with a status")
    finally:
        # Its goodbye is not waited for: that would have no time limit after a cancellation.
        writer.transport.abort()


async def _status(reader: asyncio.StreamReader) -> int:
    line = await reader.readline()
    words = line.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise ValueError("it does not speak HTTP")
    return int(words[1])
