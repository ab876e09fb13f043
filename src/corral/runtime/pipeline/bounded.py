"""Answers of image servers up to a size, so that one which sends without end takes no machine's
memory with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx

SMALL = 64 << 20
"""Bytes of an answer to a question."""
SMALL_S = 60.0
"""How long such an answer may trickle."""
IMAGES = {"most_bytes": 768 << 20}
"""`extensions` of a request for images: the largest of all still fits, as base64."""


class TooMuch(httpx.ReadError):
    """More than anybody has to say."""


class Bounded(httpx.HTTPTransport):
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.headers["accept-encoding"] = "identity"
        answer = super().handle_request(request)
        # Packed all the same, a little of it could be very much; so it stays what it is.
        answer.headers.pop("content-encoding", None)
        assert isinstance(answer.stream, httpx.SyncByteStream)
        answer.stream = _Counted(answer.stream, request.extensions.get("most_bytes", SMALL))
        return answer


class _Counted(httpx.SyncByteStream):
    def __init__(self, stream: httpx.SyncByteStream, most: Any) -> None:
        self._stream, self._most = stream, int(most)

    def __iter__(self) -> Iterator[bytes]:
        left, until = self._most, time.monotonic() + SMALL_S
        for piece in self._stream:
            if self._most == SMALL and time.monotonic() > until:
                raise httpx.ReadTimeout(f"its answer did not end within {SMALL_S:g} s")
            left -= len(piece)
            if left < 0:
                raise TooMuch(f"its answer has more than {self._most:,} bytes")
            yield piece

    def close(self) -> None:
        self._stream.close()
