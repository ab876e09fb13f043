"""What a job leaves in its run directory costs its attempt nothing."""

from __future__ import annotations

import os
from pathlib import Path

from corral import Client
from tests.engines.test_standalone import live
from tests.eventually import eventually

DEEP = 3000


def test_folders_that_lie_deep_are_removed_and_the_result_is_told(tmp_path: Path) -> None:
    def digs() -> str:
        os.mkdir("shut")
        Path("shut", "file").touch()
        os.chmod("shut", 0)
        for _ in range(DEEP):
            os.mkdir("d")
            os.chdir("d")
        return "dug"

    with live(tmp_path / "home") as here, Client(home=here.home) as client:
        handle = client.submit(digs, cpus=0.1)
        assert handle.result(30) == "dug"
        assert handle.status().attempt == 1
        folder = here.home / "standalone"
        eventually(lambda: not list(folder.glob("attempt-*")), "it is removed")
