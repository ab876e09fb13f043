"""Programs that are gone before they are found do not outlive their job, however it ends."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import corral
from corral.agent.runners.cgroups import own_group
from corral.runtime.sandbox import rules
from tests.eventually import eventually
from tests.fakes.fork_chain import JOB, write_chain
from tests.live import CORRAL, LiveController

QUIET_S = 0.3
WITHOUT_GROUPS = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
WITHOUT_GROUPS += ['mount -t tmpfs none /sys/fs/cgroup && exec "$@"', "sh"]


class Worker:
    """The worker of a controller, and programs that try to outlive their jobs there."""

    def __init__(self, live: LiveController, yard: Path, held_by: str) -> None:
        self.live, self.held_by = live, held_by
        self._yard, self._program = yard, write_chain(yard / "chain")
        self._count = 0
        self._seen = Path()

    @property
    def client(self) -> corral.Client:
        return corral.Client(self.live.address, self.live.token)

    def chain(self, client: corral.Client, **options: float) -> corral.Handle:
        """A job with such programs, once they run."""
        self._count += 1
        self._seen = self._yard / f"seen{self._count}"
        script = self._yard / "job.py"
        script.write_text(JOB)
        handle = client.submit_script(
            script,
            [str(self._program), str(self._seen)],
            **options,  # type: ignore[arg-type]
        )
        eventually(lambda: self._seen.exists() and self._seen.stat().st_size > 100, "the chain")
        return handle

    def over(self) -> bool:
        """Whether they have ended. Nothing announces that one does nothing any more."""
        before = self._seen.stat().st_size
        assert before < 1 << 20, "they ended by themselves"
        time.sleep(QUIET_S)
        return self._seen.stat().st_size == before

    def agent(self) -> psutil.Process:
        words = {"corral.agent.main", str(self.live.home)}
        for process in psutil.process_iter(["cmdline"]):
            if words <= set(process.info["cmdline"] or ()):
                return process
        raise AssertionError("there is no agent")


def _has_groups() -> bool:
    return os.access(own_group() or "/nonexistent", os.W_OK)


@pytest.fixture(
    params=[
        pytest.param("cgroup", marks=pytest.mark.long),
        "landlock",
        pytest.param("process_tree", marks=pytest.mark.long),
    ]
)
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Worker]:
    held_by: str = request.param
    if held_by == "cgroup" and not _has_groups():
        pytest.skip("this machine gives us no control groups")
    if held_by == "landlock" and rules.landlock_version() < rules.SCOPES_SINCE:
        pytest.skip("Landlock does not scope signals here")
    prefix = [] if held_by == "cgroup" or not _has_groups() else WITHOUT_GROUPS
    yard = tmp_path / "yard"
    yard.mkdir()
    home = tmp_path / "home"
    home.mkdir()
    (home / "corral.yaml").write_text(
        "cancel_grace_s: 0.2\nshutdown_grace_s: 0.5\nworker:\n"
        f"  write_paths: [{yard}]\n  isolate: {str(held_by != 'process_tree').lower()}\n"
    )
    with LiveController(home, prefix=prefix) as live:
        yield Worker(live, yard, held_by)


def test_fork_chains_end_with_their_job(worker: Worker) -> None:
    with worker.client as client:
        cancelled = worker.chain(client)
        (here,) = client.workers()
        assert here.enforced["duration"] == worker.held_by
        cancelled.cancel()
        eventually(lambda: cancelled.status().state == "cancelled", "cancelled")
        assert worker.over()
        long = worker.chain(client, duration=4.0)  # on a busy machine it takes a while to begin
        with pytest.raises(corral.JobFailed, match="longer than its duration"):
            long.result()
        assert worker.over()
        running = worker.chain(client)
        worker.agent().kill()
        eventually(worker.over, "the end of what a killed agent leaves")
        running.cancel()
        worker.chain(client)
    down = subprocess.run([CORRAL, "down"], env=worker.live.environ, capture_output=True, text=True)
    assert down.returncode == 0, down
    assert worker.over()


def leave(group: str) -> str:
    """Moves itself into another control group, as root may."""
    try:
        with open(f"{group}/cgroup.procs", "w") as file:
            file.write("0")
    except OSError as error:
        return type(error).__name__
    return "moved"


def start_elsewhere(group: str, *, stays: bool = False) -> int:
    """A process that is in another control group from its birth on: nothing is written for that,
    so Landlock is not asked."""
    import ctypes
    import struct

    at = os.open(group, os.O_PATH | os.O_DIRECTORY)
    into_cgroup, end_signal = 0x200000000, 17
    words = struct.pack("=11Q", into_cgroup, 0, 0, 0, end_signal, 0, 0, 0, 0, 0, at)
    clone3, size = ctypes.c_long(435), ctypes.c_size_t(len(words))
    pid: int = ctypes.CDLL(None).syscall(clone3, words, size)
    if pid == 0:
        os.setsid()
        os.execve("/bin/sleep", ["sleep", "600"], {})
    if stays:
        print(pid, flush=True)
        time.sleep(600)
    return pid


@pytest.mark.long
@pytest.mark.parametrize("worker", ["cgroup"], indirect=True)
def test_what_was_born_in_another_group_ends_with_its_job(worker: Worker) -> None:
    with worker.client as client:
        born: int = client.submit(start_elsewhere, (own_group(),)).result()
        assert born > 0
        eventually(lambda: not psutil.pid_exists(born), "the end of what a job left")
        running = client.submit(start_elsewhere, (own_group(),), {"stays": True})
        born = int(next(iter(running.logs())))
        worker.agent().kill()
        eventually(lambda: not psutil.pid_exists(born), "the end of what a killed agent left")
        running.cancel()


@pytest.mark.parametrize("worker", ["cgroup"], indirect=True)
def test_a_runner_stays_in_its_group_and_no_group_is_left(worker: Worker) -> None:
    note = worker.live.home / "worker" / "cgroup"
    with worker.client as client:
        assert client.submit(leave, (own_group(),)).result() == "PermissionError"
        groups = Path(note.read_text())
        left = {one.name for one in groups.iterdir() if one.is_dir()}
        agent = worker.agent()
        agent.kill()
        agent.wait()
        assert client.submit(abs, (-1,)).result() == 1
        found = {one.name for one in groups.iterdir() if one.is_dir()}
        assert left
        assert found
        assert found.isdisjoint(left)
        assert all(one.startswith(f"{worker.agent().pid}-") for one in found)
    assert worker.live.stop() == 0
    assert not groups.exists()
