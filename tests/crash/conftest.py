"""What crash tests share: where homes lie, whether processes can be watched here, and a line in
the summary for each thing that was done many times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.crash import tracing
from tests.ports import free_port

ROOT = Path(__file__).parents[2]


@pytest.fixture
def covered(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Says in the summary how much a test went through."""
    return lambda line: record_property("covered", line)


@pytest.fixture
def watching() -> None:
    """Skips where a process may not watch another."""
    if why := tracing.unavailable():
        pytest.skip(why)


@pytest.fixture
def ground() -> Iterator[Path]:
    """A folder for homes that are made and lost by the hundred: in memory where possible. A killed
    process leaves its page cache behind either way, and power cuts are simulated."""
    memory = Path("/dev/shm")
    place = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    made = tempfile.TemporaryDirectory(
        prefix="corral-crash-", dir=place, ignore_cleanup_errors=True
    )
    with made as folder:
        yield Path(folder)


Programs = Callable[[Sequence[Sequence[str]]], list[dict[str, Any]]]


@pytest.fixture
def programs() -> Programs:
    """Runs `python -m …` for each list of arguments, all at once, and collects their JSON lines."""

    def run(commands: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
        started = [
            subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for command in commands
        ]
        rows = []
        for process in started:
            said, wrong = process.communicate()
            assert process.returncode == 0, wrong
            rows += [json.loads(line) for line in said.splitlines()]
        return rows

    return run


def same_port() -> list[str]:
    """Flags with which a controller comes back where it was: attempts that run on find it."""
    return ["--port", str(free_port())]


def complaints(rows: Sequence[dict[str, Any]]) -> str:
    """The first few things that went wrong, for a failing assertion."""
    wrong = [row for row in rows if row["wrong"]]
    shown = [f"{ {**row, 'wrong': '…'} }\n{row['wrong']}" for row in wrong[:3]]
    return "\n".join([f"{len(wrong)} of {len(rows)} went wrong:", *shown])
