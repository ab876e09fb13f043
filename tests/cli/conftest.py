"""The command line against a served orchestrator, in this process and in terminals of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from corral.cli.main import build
from tests.sdk.orchestrator import Orchestrator, Served


class Answer:
    """What a command printed and how it ended."""

    def __init__(self, result: Any) -> None:
        self.code: int = result.exit_code
        self.out: str = result.stdout
        self.err: str = result.stderr
        self.exception: BaseException | None = result.exception

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Corral = Callable[..., Answer]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "home") as started:
        yield started


@pytest.fixture
def orchestrator(served: Served) -> Orchestrator:
    return served.orchestrator


@pytest.fixture
def corral(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corral:
    """`corral("jobs", "--json")`: the command in this process, in the test's own home."""
    for name in ("CORRAL_ADDRESS", "CORRAL_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CORRAL_HOME", str(tmp_path / "home"))

    def invoke(*words: str) -> Answer:
        return Answer(CliRunner().invoke(build(), list(words), catch_exceptions=False))

    return invoke


@pytest.fixture
def nobody(corral: Corral, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address where nothing listens, whatever runs on this machine."""
    monkeypatch.setenv("CORRAL_ADDRESS", "127.0.0.1:1")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Prints its arguments, tells progress, and exits with the number it is given."""
    path = tmp_path / "hello.py"
    path.write_text(
        "import sys\n"
        "print('hello', *sys.argv[1:], flush=True)\n"
        "print('##progress 0.5 halfway there', flush=True)\n"
        "print('bye')\n"
        "sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)\n"
    )
    return path
