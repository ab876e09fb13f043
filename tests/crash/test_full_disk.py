"""A full disk: submissions are refused with their reason, nothing acknowledged is lost, the
controller keeps answering, and it goes on by itself once there is room again."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import corral
from corral.core.errors import DiskFull, StorageFailed
from corral.core.events import JobSucceeded
from tests.crash.books import end_of, stories
from tests.eventually import PATIENCE_S, eventually
from tests.live import LiveController

pytestmark = [pytest.mark.crash, pytest.mark.long]

SIZE_MB = 8


class SmallDisk:
    """A file system of its own with a few megabytes. Where none can be mounted, a limit on the
    size of files does the same to one process: every write fails."""

    def __init__(self, place: Path, size_mb: int = SIZE_MB) -> None:
        self.place = place
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(place)]
        self.mounted = subprocess.run(command, capture_output=True).returncode == 0
        self._ballast = place / "ballast"

    @contextlib.contextmanager
    def full(self, pid: int) -> Iterator[None]:
        if not self.mounted:
            before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))
            try:
                yield
            finally:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
            return
        with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while file.write(b"\0" * 4096):
                pass
        try:
            yield
        finally:
            self._ballast.unlink()

    def close(self) -> None:
        if self.mounted:
            # Lazily: an agent may still be putting its things away.
            subprocess.run(["umount", "-l", str(self.place)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    place = tmp_path / "disk"
    place.mkdir()
    disk = SmallDisk(place)
    yield disk
    disk.close()


def gated(yard: str, name: str, size: int) -> str:
    import time
    from pathlib import Path

    Path(yard, f"{name}.started").touch()
    while not Path(yard, f"{name}.gate").exists():
        print("chewing " * 100, flush=True)
        time.sleep(0.02)
    return "grass" * size


@pytest.fixture
def ranch(disk: SmallDisk, tmp_path: Path) -> Iterator[tuple[LiveController, Path]]:
    """A controller whose home is on the small disk, with the worker's part of it elsewhere: it is
    the controller that is out of room."""
    home, yard, worker = disk.place / "home", tmp_path / "yard", tmp_path / "worker"
    for folder in (home, yard, worker):
        folder.mkdir()
    (home / "worker").symlink_to(worker)
    environ = {
        "CORRAL_WORKER_WRITE_PATHS": f"[{yard}]",
        "CORRAL_WORKER_CPUS": "3",
        "CORRAL_BACKOFF_S": "0",
        # Here it is the last byte that is gone: no guard stops before, and nothing is kept aside.
        "CORRAL_DISK_REFUSE_AT": "1.0",
        "CORRAL_DISK_RESERVE_MB": "0",
    }
    with LiveController(home, environ=environ) as controller:
        yield controller, yard


def _accepted(client: corral.Client) -> corral.Handle:
    """The guard may have looked last while there was no room; it looks again soon."""
    return eventually(lambda: client.submit(len, ("moo",)), "it takes work", ignoring=DiskFull)


def test_full_disk(ranch: tuple[LiveController, Path], disk: SmallDisk) -> None:
    controller, yard = ranch
    with corral.Client(controller.address, controller.token) as client:
        small = client.submit(gated, (str(yard), "small", 1))
        large = client.submit(gated, (str(yard), "large", 10_000))
        eventually((yard / "small.started").exists, "small has begun")
        eventually((yard / "large.started").exists, "large has begun")
        assert controller.process is not None
        with disk.full(controller.process.pid):
            if not disk.mounted:  # the disk itself has room, so the first one may be sent at once
                with pytest.raises(StorageFailed):
                    client.submit(len, ("moo",), cpus=64)
            assert "Free some space" in _refused(client).message
            with pytest.raises(StorageFailed):
                client.submit(len, (os.urandom(20_000),))
            # Both end while there is no room: one result waits in the agent, the other in its
            # runner, which cannot upload it.
            (yard / "small.gate").touch()
            (yard / "large.gate").touch()
            # More than the log's own last page has room for: what cannot be logged does no harm.
            for _ in range(60):
                _refused(client)
            assert client.health() is not None, "it keeps answering"
            assert controller.healthy()
            assert not small.status().ended, "what is not on disk did not happen"
        assert small.result(timeout=PATIENCE_S) == "grass"
        assert large.result(timeout=PATIENCE_S) == "grass" * 10_000
        again = _accepted(client)
        assert again.result(timeout=PATIENCE_S) == 3
        jobs = [small.id, large.id, again.id]
    assert controller.process.poll() is None, "without a restart"
    controller.stop()
    found = stories(controller.home)
    assert set(jobs) <= set(found)
    assert all(isinstance(end_of(found[job]), JobSucceeded) for job in jobs)


def _refused(client: corral.Client) -> StorageFailed:
    """Submits until the last free page is taken; what was acknowledged until then is there."""
    accepted: list[corral.Handle] = []
    try:
        while len(accepted) < 1000:
            accepted.append(client.submit(len, ("x" * 4000,)))
    except StorageFailed as error:
        for handle in accepted:
            assert handle.status().job_id == handle.id
        return error
    raise AssertionError("the disk never was full")


def mark(yard: str, name: str) -> str:
    from pathlib import Path

    with Path(yard, name).open("a") as file:
        file.write("ran\n")
    return name


def test_a_submission_is_refused_or_runs_and_never_both(tmp_path: Path) -> None:
    """The disk has room when the job is sent ahead of its commit, and none when that is written."""
    yard = tmp_path / "yard"
    yard.mkdir()
    environ = {"CORRAL_WORKER_WRITE_PATHS": f"[{yard}]", "CORRAL_WORKER_CPUS": "4"}
    with LiveController(tmp_path / "home", environ=environ) as controller:
        assert controller.process is not None
        pid = controller.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        with (
            corral.Client(controller.address, controller.token) as client,
            ThreadPoolExecutor(1) as aside,
        ):
            assert client.run(mark, (str(yard), "warm"), output=None) == "warm"
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))
            try:
                first = aside.submit(client.submit, mark, (str(yard), "first"))
                eventually((yard / "first").exists, "the first has begun")
                for number in range(5):
                    with pytest.raises(StorageFailed):
                        client.submit(mark, (str(yard), f"refused{number}"))
                assert not first.done(), "it ran, so it is not refused"
            finally:
                resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
            handle = first.result(PATIENCE_S)
            assert handle.result(timeout=PATIENCE_S) == "first"
            assert client.run(mark, (str(yard), "last"), output=None) == "last"
        assert sorted(path.name for path in yard.iterdir()) == ["first", "last", "warm"]
        assert (yard / "first").read_text() == "ran\n", "once"
        assert controller.process.poll() is None


def test_start_on_a_full_disk(disk: SmallDisk) -> None:
    """It says so in one sentence, and starts once there is room."""
    environ = {"CORRAL_WORKER_ENABLED": "false", "CORRAL_DISK_RESERVE_MB": "0"}
    with LiveController(disk.place / "home", environ=environ) as controller:
        with corral.Client(controller.address, controller.token) as client:
            job = client.submit(len, ("moo",)).id
        controller.kill()
        with disk.full(os.getpid()), pytest.raises(AssertionError, match="corral up ended with 1"):
            controller.start()
        assert "Traceback" not in controller.log
        assert not disk.mounted or "space" in controller.log
        controller.start()
        with corral.Client(controller.address, controller.token) as client:
            assert client.job(job).status().state == "queued"
