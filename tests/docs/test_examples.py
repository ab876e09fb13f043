"""Python in the documentation runs: each ```python block is a whole program, run as a file of its
own against a real controller. A ```text block right behind it is what it must print. Fragments
that cannot stand alone are marked ```py and not run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, blocks, pages
from tests.live import CORRAL, LiveController

PROGRAMS = [block for page in pages() for block in blocks(page) if block.kind == "python"]
EXAMPLES = {
    "hello": [sys.executable, "examples/hello.py"],
    "train": [
        CORRAL,
        "run",
        "--retries",
        "1",
        "examples/train.py",
        "--epochs",
        "4",
        "--fail-at",
        "3",
    ],
    "folder": [
        *(CORRAL, "run", "--requirements", "examples/folder/requirements.txt"),
        "examples/folder",
    ],
}


def _run(command: list[str], controller: LiveController, cwd: Path) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**controller.environ, "PYTHONUTF8": "1", "COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=100,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: f"{block.page}:{block.line}")
def test_block_runs(block: Block, controller: LiveController, tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(block.text, encoding="utf-8")
    printed = _run([sys.executable, str(program)], controller, tmp_path)
    if block.output is not None:
        assert printed.strip() == block.output.strip()


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(name: str, controller: LiveController) -> None:
    _run(EXAMPLES[name], controller, ROOT)
