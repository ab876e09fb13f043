"""A disk that is nearly full: no new work, running work ends, and it goes on by itself."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import corral
from corral.controller.files.disk import DiskGuard
from corral.core.errors import DiskFull
from corral.doctor.findings import examined
from corral.doctor.running import ControllerChecks
from tests.crash.test_full_disk import SIZE_MB, SmallDisk, gated
from tests.eventually import PATIENCE_S, eventually
from tests.live import LiveController


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    place = tmp_path / "disk"
    place.mkdir()
    disk = SmallDisk(place)
    if not disk.mounted:
        pytest.skip("a disk that fills up has to be mounted, which needs root")
    yield disk
    disk.close()


def fill(disk: SmallDisk, share: float) -> Path:
    """Takes room until this much of the disk is used."""
    ballast = disk.place / "hay"
    with ballast.open("ab", buffering=0) as file:
        while used(disk) < share:
            file.write(bytes(4096))
    return ballast


def used(disk: SmallDisk) -> float:
    usage = shutil.disk_usage(disk.place)
    return usage.used / usage.total


def test_limits_and_reserve(disk: SmallDisk) -> None:
    changes: list[bool] = []
    guard = DiskGuard(
        disk.place,
        refuse_at=0.9,
        min_free_gb=0.0,
        reserve_mb=64.0,
        changed=lambda: changes.append(guard.full),
    )
    guard.look()
    guard.check()
    reserve = disk.place / "reserve"
    assert 0 < reserve.stat().st_size <= SIZE_MB * 2**20 // 100, "never more than a hundredth"
    hay = fill(disk, 0.91)
    guard.look()
    with pytest.raises(DiskFull, match="90%"):
        guard.check()
    assert reserve.exists(), "not needed yet"
    size = hay.stat().st_size
    for share, full in ((0.905, True), (0.89, True), (0.87, False), (0.89, False)):
        with hay.open("r+b") as file:
            file.truncate(int(size - (0.91 - share) * SIZE_MB * 2**20))
        guard.look()
        assert guard.full is full, f"at {share:.1%}"
    fill(disk, 0.999)
    guard.look()
    assert not reserve.exists(), "now it is needed"
    hay.unlink()
    guard.look()
    assert reserve.exists(), "and set aside again"
    assert changes == [True, False, True, False]


def test_least_that_must_be_free(disk: SmallDisk) -> None:
    guard = DiskGuard(disk.place, refuse_at=1.0, min_free_gb=0.004, reserve_mb=0.0)
    guard.look()
    guard.check()
    hay = fill(disk, 0.6)
    guard.look()
    with pytest.raises(DiskFull, match=r"0\.004 GB free"):
        guard.check()
    hay.unlink()
    guard.look()
    guard.check()


def asked(controller: LiveController, path: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {controller.token}"}
    request = urllib.request.Request(f"{controller.url}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=5) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def health(controller: LiveController) -> dict[str, Any]:
    return asked(controller, "/health")


def test_nearly_full(disk: SmallDisk, tmp_path: Path) -> None:
    home, yard, worker = disk.place / "home", tmp_path / "yard", tmp_path / "worker"
    for folder in (home, yard, worker):
        folder.mkdir()
    (home / "worker").symlink_to(worker)
    environ = {"CORRAL_WORKER_WRITE_PATHS": f"[{yard}]", "CORRAL_WORKER_CPUS": "1"}
    with (
        LiveController(home, environ=environ) as controller,
        corral.Client(controller.address, controller.token) as client,
    ):
        running = client.submit(gated, (str(yard), "running", 4000))
        eventually((yard / "running.started").exists, "it has begun")
        # Some are already sent ahead to the worker, which is as good as running.
        waiting = [client.submit(len, ("moo",)) for _ in range(40)][-1]
        assert waiting.status().state == "queued"
        hay = fill(disk, 0.96)
        eventually(lambda: health(controller)["status"] == "full", "the disk counts as full")
        assert "full" in health(controller)["reason"]
        assert client.health().status == "full"
        before = health(controller)["reason"]
        status = asked(controller, "/cluster/status")
        assert status["status"] == "full"
        # It looks again and again, and its own log grows.
        assert status["reason"] in (before, health(controller)["reason"])
        (room,) = [
            one for one in examined([ControllerChecks(home).controller]) if one.check == "room"
        ]
        assert (room.status, "full" in room.said) == ("fail", True)
        with pytest.raises(DiskFull, match="Free some space") as refused:
            client.submit(len, ("moo",))
        assert refused.value.code == "disk_full"
        with pytest.raises(DiskFull):
            client.submit(len, (b"x" * 200_000,))
        (tmp_path / "asset").write_bytes(b"hay")
        with pytest.raises(DiskFull):
            client.put(tmp_path / "asset")
        (yard / "running.gate").touch()
        assert running.result(timeout=PATIENCE_S) == "grass" * 4000, "what runs ends safely"
        assert "room" in waiting.why().summary
        assert waiting.status().state == "queued"
        hay.unlink()
        assert waiting.result(timeout=PATIENCE_S) == 3
        assert client.submit(len, ("moo",)).result(timeout=PATIENCE_S) == 3
        assert health(controller)["status"] == "ok"
        said = [line for line in controller.log.splitlines() if "used=" in line]
        assert ["disk_full" in line for line in said] == [True, False], "a line for each change"
