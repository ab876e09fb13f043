"""`corral bench` against a real controller: it measures everything and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from corral.sdk.client import Client
from tests.live import CORRAL, LiveController


def _bench(controller: LiveController, *words: str) -> subprocess.CompletedProcess[str]:
    command = [CORRAL, "bench", "--jobs", "30", "--calls", "10", *words]
    return subprocess.run(
        command, env=controller.environ, capture_output=True, text=True, timeout=60, check=False
    )


def test_bench(controller: LiveController) -> None:
    done = _bench(controller)
    assert done.returncode == 0, done.stderr
    for name in ("end to end", "latency, p99", "submit, batches of 1,000"):
        assert name in done.stdout


def test_bench_leaves_nothing_waiting(controller: LiveController) -> None:
    found = json.loads(_bench(controller, "--json").stdout)
    assert found.pop("workers") == 1
    assert len(found) == 6
    assert all(value > 0 for value in found.values())
    with Client(controller.address, controller.token) as client:
        assert client.jobs(active=True) == []


def test_bench_without_a_worker(tmp_path: Path) -> None:
    with LiveController(tmp_path, environ={"CORRAL_WORKER_ENABLED": "false"}) as controller:
        done = _bench(controller)
    assert done.returncode == 1
    assert "No worker is connected" in done.stderr
