"""SQLite's write-ahead log, read past a damaged frame.

SQLite stops at the first frame whose checksum is wrong and drops all that was committed behind it.
Records have checksums of their own, so a repair may look further: here the log's chain of checksums
is made whole again around whatever its pages hold.
"""

from __future__ import annotations

import struct
from itertools import islice

_HEADER, _FRAME = 32, 24
_MAGIC = 0x377F0682
_PAGE_SIZES = frozenset(512 << n for n in range(8))


def mended(log: bytes) -> bytes:
    """The log with a checksum on every frame of its present generation, damaged or not; empty
    where it has no such frame."""
    if len(log) < _HEADER + _FRAME:
        return b""
    magic, version, page_size, sequence = struct.unpack_from(">4I", log)
    if page_size not in _PAGE_SIZES:
        page_size = 4096  # what every journal of ours has
    salts = log[_HEADER + 8 : _HEADER + 16]
    order = ">" if magic & 1 else "<"
    head = struct.pack(">4I", _MAGIC | magic & 1, version, page_size, sequence) + salts
    sums = _checksum(order, head, (0, 0))
    whole = [head, struct.pack(">2I", *sums)]
    step = _FRAME + page_size
    starts = range(_HEADER, len(log) - step + 1, step)
    for number, start in enumerate(starts):
        # One foreign frame is a flipped bit; two are the rest of an older generation.
        near = islice(starts, number, number + 2)
        if all(log[other + 8 : other + 16] != salts for other in near):
            break
        meaning, page = log[start : start + 8], log[start + _FRAME : start + step]
        sums = _checksum(order, page, _checksum(order, meaning, sums))
        whole += [meaning, salts, struct.pack(">2I", *sums), page]
    return b"".join(whole) if len(whole) > 2 else b""


def _checksum(order: str, data: bytes, sums: tuple[int, int]) -> tuple[int, int]:
    """SQLite's: two running sums over pairs of 32-bit words."""
    first, second = sums
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for even, odd in zip(words, words, strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
