"""The parcels of the local door (`api.local_door`): calls and answers between a program and the
controller of its own machine, over a socket in the home.

A parcel is its length, the number of the call, and a payload. The first one, number 0, carries the
token. A call's payload is its correlation id (one byte for its length) and a SubmitJobsRequest; an
answer's is one byte, GOOD or BAD, and a SubmitJobsReply or the error's view as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

HEAD = Struct(">IQ")
GOOD, BAD = b"\0", b"\1"
SOCKET = "calls.sock"


def parcel(number: int, payload: bytes) -> bytes:
    return HEAD.pack(len(payload), number) + payload


def call(correlation_id: str, request: bytes) -> bytes:
    text = correlation_id.encode()
    return bytes([len(text)]) + text + request


def read_call(payload: bytes) -> tuple[str, bytes]:
    end = 1 + payload[0]
    return payload[1:end].decode("ascii", "replace"), payload[end:]


class Parcels:
    """Parcels out of pieces as a socket hands them over."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._rest = bytearray()
        self._wanted = HEAD.size

    @property
    def waiting(self) -> int:
        """Bytes of a parcel that is not whole yet."""
        return len(self._rest)

    def clear(self) -> None:
        self._rest = bytearray()

    def take(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Raises ValueError where a parcel is longer than it may be."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return  # a long parcel is put together once, not with every piece of it
            data = bytes(self._rest)
            self._rest.clear()
        start, self._wanted = 0, HEAD.size
        while len(data) - start >= HEAD.size:
            length, number = HEAD.unpack_from(data, start)
            if length > self.limit:
                raise ValueError(length)
            end = start + HEAD.size + length
            if len(data) < end:
                self._wanted = HEAD.size + length
                break
            yield number, data[start + HEAD.size : end]
            start = end
        self._rest += data[start:]
