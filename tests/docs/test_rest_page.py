"""The shell blocks of docs/rest.md, run as they stand in one shell against a real controller."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import blocks
from tests.live import LiveController

MARK = "--- next block ---"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed here")
def test_the_page_runs(tmp_path: Path) -> None:
    found = [block for block in blocks("docs/rest.md") if block.kind == "sh"]
    assert len(found) > 5
    script = f"\necho; echo '{MARK}'\n".join(["set -euo pipefail", *(one.text for one in found)])
    with LiveController(tmp_path / "home") as controller:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env={**controller.environ, "no_proxy": "*"},
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = done.stdout.split(MARK)[1:]
    for block, shown in zip(found, printed, strict=True):
        if block.output is not None:
            assert shown.strip() == block.output.strip(), f"docs/rest.md:{block.line}"
        else:
            assert not shown.strip(), f"docs/rest.md:{block.line} prints {shown}"
