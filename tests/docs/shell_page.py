"""The shell blocks of a page, run as they stand in one shell against a real controller."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.docs.pages import Block, blocks

MARK = "--- next block ---"


def run(
    page: str,
    folder: Path,
    environ: Mapping[str, str],
    chosen: Callable[[Block], bool] = lambda block: True,
) -> None:
    found = [block for block in blocks(page) if block.kind == "sh" and chosen(block)]
    assert found
    script = f"\necho; echo '{MARK}'\n".join(["set -euo pipefail", *(one.text for one in found)])
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**environ, "no_proxy": "*"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = done.stdout.split(MARK)[1:]
    for block, shown in zip(found, printed, strict=True):
        if block.output is not None:
            assert shown.strip() == block.output.strip(), f"{page}:{block.line}"
        else:
            assert not shown.strip(), f"{page}:{block.line} prints {shown}"
