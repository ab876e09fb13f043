"""`corral config` beside a controller that was started before its file was changed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.live import CORRAL, LiveController


def test_what_waits_for_a_restart_is_named(tmp_path: Path) -> None:
    file = tmp_path / "corral.yaml"
    file.write_text("worker: {cpus: 2}\n")
    controller = LiveController(tmp_path, environ={"CORRAL_GRACE_S": "7"})

    def config(*flags: str) -> str:
        command = [CORRAL, "config", *flags]
        environ = {key: value for key, value in controller.environ.items() if "GRACE" not in key}
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout + done.stderr

    with controller:
        assert (tmp_path / "settings.json").stat().st_mode & 0o077 == 0
        assert "start it again" not in config()
        file.write_text("worker: {cpus: 3, read_paths: [/data]}\ngrace_s: 9\nport: 8701\n")
        told = json.loads(config("--json"))["settings"]
        old = {key: one["running"] for key, one in told.items() if "running" in one}
        assert old == {"worker.cpus": 2.0, "worker.read_paths": []}, "others come from outside"
        assert "  worker.cpus (now 2.0)" in config()
    assert "start it again" not in config()
    with controller:
        assert "start it again" not in config()
