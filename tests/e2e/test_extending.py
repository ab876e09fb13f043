"""More time for a job that runs, through every door, and past a kill of the controller."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

import corral
from corral.core.errors import Conflict, InvalidJob
from tests.api.rest import Rest
from tests.live import CORRAL, LiveController


def test_more_time_outlives_the_controller(tmp_path: Path) -> None:
    opened = tmp_path / "open"
    home = tmp_path / "home"
    home.mkdir()
    (home / "corral.yaml").write_text(f"worker: {{read_paths: ['{tmp_path}']}}\n")

    def work(path: str) -> str:
        print("begun", flush=True)
        while not Path(path).exists():
            time.sleep(0.05)
        return "done"

    with LiveController(home) as live, corral.Client(home=home) as client:
        handle = client.submit(work, (str(opened),), duration="1h")
        logs = handle.logs()
        assert next(logs) == "begun\n"
        assert handle.extend("1h").duration == 7200.0
        assert "corral: this job was given more time: it is ended after 2.0 h" in next(logs)
        assert Rest(live)("POST", f"/jobs/{handle.id}/extend?by=3600").json["duration"] == 10_800.0
        assert "it is ended after 3.0 h" in next(logs)
        told = subprocess.run(
            [CORRAL, "extend", handle.id, "1h"],
            env=live.environ, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert told.stdout.startswith(f"{handle.id} is ended after 4.0 h: at 20")
        assert "it is ended after 4.0 h" in next(logs)
        live.kill()
        live.start()
        with corral.Client(home=home) as again:
            handle = again.job(handle.id)
            assert handle.status().duration == 14_400.0
            opened.touch()
            assert handle.result(60) == "done"
            with pytest.raises(Conflict, match="corral retry"):
                handle.extend(60)
            with pytest.raises(InvalidJob, match="is a number of seconds, or 90s"):
                handle.extend("long")
