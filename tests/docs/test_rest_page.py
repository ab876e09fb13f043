"""The shell blocks of docs/rest.md, in the clear on loopback and over TLS."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.debian import needs
from tests.docs import shell_page
from tests.docs.pages import Block
from tests.live import CORRAL, LiveController


def _is_of_others(block: Block) -> bool:
    """What asks by TLS as another machine does."""
    return "corral.pem" in block.text


@pytest.mark.timeout(300)
@pytest.mark.parametrize("tls", ["auto", "always"])
def test_the_page_runs(tmp_path: Path, tls: str) -> None:
    needs("curl", "curl")
    with LiveController(tmp_path / "home", environ={"CORRAL_TLS": tls}) as controller:
        path = f"{Path(CORRAL).parent}:{os.environ['PATH']}"
        shell_page.run(
            "docs/rest.md",
            tmp_path,
            {**controller.environ, "PATH": path},
            lambda block: tls == "always" or not _is_of_others(block),
        )
