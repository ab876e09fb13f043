"""What the loop of attempts asks of its two ways, whichever kind of runner it lives in.

Forked: `inbox.Inbox` and `road.Road`. Spawned, as on Windows: `line.LoopbackLine` is both.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from mmap import mmap
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from corral.runtime.cancellation import Cancellation
    from corral.runtime.channels.redaction import Redactor


class InboxPort(Protocol):
    def next(self) -> bytes | None: ...
    def cancel_came(self, job: str = "", attempt: int = 0) -> bool: ...
    def wait_for(self, process: subprocess.Popen[bytes], cancellation: Cancellation) -> bool: ...


class RoadPort(Protocol):
    redactor: Redactor | None

    @property
    def page(self) -> mmap | bytearray: ...
    @property
    def for_children(self) -> Sequence[int]:
        """Descriptors that a script inherits to say its words."""

    def hide(self, redactor: Redactor) -> None: ...
    def capture(self) -> None: ...
    def begin(self) -> None: ...
    def send(self, data: bytes) -> None: ...
    def tell(self, stream: str, words: str) -> None: ...
    def end(self, data: bytes) -> None: ...
