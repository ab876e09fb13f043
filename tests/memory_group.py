"""A control group with little memory, for processes that are to run out of it."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from corral.runtime.process.memory_kills import folder
from tests.eventually import eventually


@contextlib.contextmanager
def memory_group(limit_mb: int) -> Iterator[Sequence[str]]:
    """Words before a command that put it there. Version 1 or 2, whichever counts memory here."""
    path, limit = _made()
    try:
        (path / limit).write_text(str(limit_mb << 20))
        with contextlib.suppress(OSError):
            (path / "memory.swap.max").write_text("0")
        yield ("/bin/sh", "-c", f'echo $$ > {path}/cgroup.procs && exec "$@"', "sh")
    finally:
        eventually(lambda: not (path / "cgroup.procs").read_text(), "nothing runs there any more")
        path.rmdir()


def _made() -> tuple[Path, str]:
    name = f"corral-test-{uuid.uuid4().hex[:8]}"
    for controller, limit in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        here, _ = folder("/proc", controller)
        if not here or not os.access(here, os.W_OK):
            continue
        path = Path(here) / name
        with contextlib.suppress(OSError):
            path.mkdir()
            if (path / limit).exists():
                return path, limit
            path.rmdir()
    pytest.skip("no control group that counts memory can be made here, which needs root")
