"""Jobs that are sent while they are written: what they ask the controller for waits for that."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import corral
from tests import live
from tests.live import LiveController

pytestmark = pytest.mark.crash

SLOW_UP = """#!{python}
import sys, time
from corral.cli.main import main
from corral.controller.journal.database import Journal

write = Journal.write

def slowly(self, *what):
    time.sleep(0.1)
    return write(self, *what)

Journal.write = slowly
main()
"""


def size(data: bytes) -> int:
    return len(data)


def large(count: int) -> bytes:
    import corral.job

    corral.job.checkpoint(b"here")
    return b"x" * count


def test_transfers_of_a_job_that_is_not_yet_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "slow-up"
    command.write_text(SLOW_UP.format(python=sys.executable), "utf-8")
    command.chmod(0o700)
    monkeypatch.setattr(live, "CORRAL", str(command))
    with LiveController(tmp_path / "home") as controller:
        with corral.Client(controller.address, controller.token) as client:
            assert client.run(size, (b"",)) == 0  # the next ones find a warm runner
            for _ in range(3):
                assert client.run(size, (bytes(200_000),)) == 200_000
                assert len(client.run(large, (100_000,))) == 100_000
        assert "job_requeued" not in controller.log, controller.log
