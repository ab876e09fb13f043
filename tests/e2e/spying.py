"""What a curious job does. Apart from the tests: pytest rewrites those, and jobs have no pytest."""

from __future__ import annotations

import os
from typing import Any


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def look(pids: dict[str, int], files: list[str]) -> dict[str, str]:
    """Everything that could be read of these; what was denied is left out."""
    found: dict[str, str] = {}

    def attempt(name: str, act: Any) -> None:
        try:
            found[name] = repr(act())[:200]
        except PermissionError:
            return
        except OSError as error:
            if error.errno not in (1, 5, 13):  # not permitted, or mem without a page
                found[name] = repr(error)

    def memory(pid: int) -> bytes:
        with open(f"/proc/{pid}/maps") as maps:
            start = next(int(line.split("-")[0], 16) for line in maps if " rw" in line)
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
            file.seek(start)
            return file.read(16)

    for who, pid in pids.items():
        if not read(f"/proc/{pid}/stat"):
            found[who] = "is not there"
        attempt(f"environ of {who}", lambda pid=pid: read(f"/proc/{pid}/environ"))
        attempt(f"memory of {who}", lambda pid=pid: memory(pid))
        attempt(f"descriptors of {who}", lambda pid=pid: os.readlink(f"/proc/{pid}/fd/1"))
    for path in files:
        attempt(path, lambda path=path: read(path))
    return found
