"""Whose turn it is at a server: one request at a time, from all processes of this worker."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from contextlib import suppress
from typing import Any

from corral.locks import lock_file
from corral.runtime.pipeline.webui.waiting_line import WaitingLine

SHARED = "/dev/shm"  # noqa: S108
"""Confined runners have temporary folders of their own; this one they share."""


class Turn:
    """A lock in a file, which the system frees when its holder dies. The file keeps what the next
    one must know: whether the last holder ended properly, and which model it left loaded."""

    def __init__(self, url: str, folder: str = "", model: str | None = None) -> None:
        usable = os.path.isdir(SHARED) and os.access(SHARED, os.W_OK)
        folder = folder or (SHARED if usable else tempfile.gettempdir())
        name = hashlib.sha256(url.encode()).hexdigest()[:16]
        self._path = os.path.join(folder, f"corral-webui-{_owner()}-{name}")
        self._fd = -1
        self._line = WaitingLine(self._path, model)

    def take(self) -> bool:
        """Whether it is ours now; whoever asks again and again keeps his place in the line."""
        if self._line.is_first(self._loaded()) and self._lock():
            self._line.leave()
            return True
        self._line.join()
        return False

    def _loaded(self) -> str:
        with suppress(OSError, ValueError), open(self._path, "rb") as file:
            found = json.loads(file.read(65_536))
            if isinstance(found, dict):
                return str(found.get("model") or "")
        return ""

    def _lock(self) -> bool:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
        if not lock_file(fd):
            os.close(fd)
            return False
        self._fd = fd
        return True

    def release(self) -> None:
        self._line.leave()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self) -> dict[str, Any]:
        os.lseek(self._fd, 0, os.SEEK_SET)
        with suppress(ValueError):
            found = json.loads(os.read(self._fd, 65_536))
            if isinstance(found, dict):
                return found
        return {}

    def write(self, **values: Any) -> None:
        text = json.dumps({**self.read(), **values}).encode()
        os.lseek(self._fd, 0, os.SEEK_SET)
        # Whoever is killed before the cut leaves spaces behind it, and no rest of the note before.
        os.write(self._fd, text.ljust(os.fstat(self._fd).st_size))
        os.ftruncate(self._fd, len(text))


def _owner() -> str:
    if sys.platform == "win32":
        return "me"
    return str(os.getuid())
