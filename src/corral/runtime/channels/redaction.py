"""Values of secrets are taken out of everything that leaves a job process.

It guards against accidents: a token in a traceback, in a debug line, in a progress message. A job
that means to give its secrets away can: it may spell them backwards.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from mmap import mmap

SHORTEST = 6
"""Values, and lines of values, below this length are words that occur by chance."""


def lines_of(value: str) -> list[str]:
    """What is looked for: each line of a value, since a key of many lines is rarely shown whole."""
    return [line for line in map(str.strip, value.splitlines()) if len(line) >= SHORTEST]


NOTHING = rb"(?!)"
"""Matches nowhere: values may all be too short to be looked for."""


class Redactor:
    """Knows the secrets of one runner, and each way in which programs write them."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._names = {
            form: f"[{name}]".encode()
            for name, value in values.items()
            for line in lines_of(value)
            for form in _forms(line)
        }
        self._forms = sorted(self._names, key=len, reverse=True)
        # Longest first: where one value begins like another, the longer one is meant.
        self._any = re.compile(b"|".join(map(re.escape, self._forms)) or NOTHING)
        self.longest = len(self._forms[0]) if self._forms else 0
        self._starts = frozenset(form[0] for form in self._forms)

    def __repr__(self) -> str:
        return "<Redactor>"

    def holds(self, data: bytes) -> str:
        """The name of a secret whose value is in these bytes; empty where there is none."""
        found = next((form for form in self._forms if form in data), b"")
        return self._names[found].decode()[1:-1] if found else ""

    def data(self, data: bytes) -> bytes:
        if not self.holds(data):
            return data
        return self._any.sub(lambda found: self._names[found[0]], data)

    def text(self, text: str) -> str:
        return self.data(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def cut_text(self, text: str) -> str:
        """The same for text that may have been cut off in the middle of a value."""
        shown, rest = self.split(text.encode("utf-8", "surrogatepass"))
        if len(rest) >= SHORTEST:
            rest = next(name for form, name in self._names.items() if form.startswith(rest))
        return (shown + rest).decode("utf-8", "surrogatepass")

    def plain(self, value: Any) -> Any:
        """The same for a frame's fields."""
        if isinstance(value, str):
            return self.cut_text(value)
        if isinstance(value, dict):
            return {self.plain(key): self.plain(one) for key, one in value.items()}
        return value

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """What can be shown now, and the end of it that may be the beginning of a value: only what
        follows can tell."""
        starts = [
            at
            for at in range(max(len(data) - self.longest + 1, 0), len(data))
            if data[at] in self._starts and self._begins(data[at:])
        ]
        shown: list[bytes] = []
        done = 0
        # Most output holds none, and asking for each in turn is much faster than for any.
        for found in self._any.finditer(data) if self.holds(data) else ():
            # A longer value may begin before this one, or with it.
            if any(done <= at <= found.start() for at in starts):
                break
            shown += (data[done : found.start()], self._names[found[0]])
            done = found.end()
        held = next((at for at in starts if at >= done), len(data))
        shown.append(data[done:held])
        return b"".join(shown), data[held:]

    def _begins(self, data: bytes) -> bool:
        size = len(data)
        return any(len(form) > size and form.startswith(data) for form in self._forms)


class StreamRedactor:
    """Redacts streams piece by piece. The ends that wait for what follows lie in memory that both
    processes of a forked runner share: either of them may be the one to go on."""

    def __init__(
        self, redactor: Redactor, streams: int, share: Callable[[int], mmap] | None = None
    ) -> None:
        self._redactor = redactor
        self._size = redactor.longest + 4
        size = self._size * streams
        self._held = share(size) if share is not None else bytearray(size)

    def pass_on(self, stream: int, data: bytes) -> bytes:
        """What can be shown now of this stream, with what was held back before."""
        shown, rest = self._redactor.split(self._take(stream) + data)
        self._put(stream, rest)
        return shown

    def rest(self, stream: int) -> bytes:
        """The stream is over: what was held back was no value after all."""
        held = self._take(stream)
        self._put(stream, b"")
        return self._redactor.data(held)

    def _take(self, stream: int) -> bytes:
        at = stream * self._size
        size = int.from_bytes(self._held[at : at + 4], "little")
        return bytes(self._held[at + 4 : at + 4 + size])

    def _put(self, stream: int, data: bytes) -> None:
        at = stream * self._size
        self._held[at : at + 4 + len(data)] = len(data).to_bytes(4, "little") + data


def _forms(line: str) -> Iterator[bytes]:
    """As it is, as JSON, Python and URLs write it, and inside base64, as in HTTP's Basic."""
    yield line.encode()
    yield json.dumps(line)[1:-1].encode()
    yield repr(line)[1:-1].encode()
    yield quote(line, safe="").encode()
    yield quote(line).encode()
    raw = line.encode()
    for before in range(3):
        # The digits at both ends depend on what stands beside the value; those between do not.
        whole = (len(raw) + before) * 8 // 6
        coded = binascii.b2a_base64(bytes(before) + raw, newline=False)[(0, 2, 3)[before] : whole]
        if len(coded) >= SHORTEST:
            yield coded
            yield coded.replace(b"+", b"-").replace(b"/", b"_")
