"""kill -9 of runner, agent and controller during a job, and SIGTERM: the job ends exactly once,
with the right result, and no process is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import corral
from corral.agent.runners.process_tree import marked
from corral.core.events import AttemptPlaced, JobRequeued, JobSucceeded
from tests.crash.books import end_of, stories
from tests.crash.conftest import same_port
from tests.eventually import PATIENCE_S, eventually
from tests.live import LiveController

pytestmark = pytest.mark.crash


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Ranch:
    """A controller with a job that writes down each of its starts and waits at a gate."""

    def __init__(self, path: Path) -> None:
        self.yard = path / "yard"
        self.yard.mkdir()
        self.home = path / "home"
        environ = {
            "CORRAL_WORKER_WRITE_PATHS": f"[{self.yard}]",
            "CORRAL_WORKER_CPUS": "3",
            "CORRAL_BACKOFF_S": "0",
            "CORRAL_SHUTDOWN_GRACE_S": "1.5",
            "CORRAL_GRACE_S": "30",
        }
        self.controller = LiveController(self.home, *same_port(), environ=environ)
        self.controller.start()

    @property
    def client(self) -> corral.Client:
        return corral.Client(self.controller.address, self.controller.token)

    def submit(self, name: str, **options: Any) -> str:
        with self.client as client:
            return client.submit(gated, (str(self.yard), name), name=name, **options).id

    def starts(self, name: str) -> list[tuple[int, int]]:
        """(attempt, pid) of each start so far."""
        path = self.yard / f"{name}.starts"
        if not path.exists():
            return []
        return [(int(a), int(b)) for a, b in map(str.split, path.read_text("utf-8").splitlines())]

    def started(self, name: str, times: int = 1) -> list[tuple[int, int]]:
        eventually(lambda: len(self.starts(name)) >= times, f"start {times} of {name}")
        return self.starts(name)

    def open_gate(self, name: str) -> None:
        (self.yard / f"{name}.gate").touch()

    def result(self, job: str) -> object:
        with self.client as client:
            return client.job(job).result(timeout=PATIENCE_S)

    def agent(self) -> psutil.Process:
        def found() -> psutil.Process | None:
            for process in psutil.process_iter(["cmdline"]):
                line = process.info["cmdline"] or []
                if "corral.agent.main" in line and str(self.home) in line:
                    return process
            return None

        return eventually(found, "an agent")

    def end(self) -> None:
        process = self.controller.process
        if process is not None and process.poll() is None:
            assert self.controller.stop() == 0, self.controller.log
        eventually(lambda: not marked(str(self.home / "worker")), "all job processes are gone")


def gated(yard: str, name: str) -> str:
    import os
    import time
    from pathlib import Path

    attempt = os.environ["CORRAL_ATTEMPT"]
    with Path(yard, f"{name}.starts").open("a") as file:
        file.write(f"{attempt} {os.getpid()}\n")
    while not Path(yard, f"{name}.gate").exists():
        time.sleep(0.01)
    return f"{name} is done" if name != "ox" else "ox is done" * 2000


@pytest.fixture
def ranch(tmp_path: Path) -> Iterator[Ranch]:
    ranch = Ranch(tmp_path)
    try:
        yield ranch
    finally:
        ranch.end()


@pytest.mark.parametrize("whose", ["supervisor", "job process"])
def test_killed_runner(ranch: Ranch, whose: str) -> None:
    """A runner is two processes. Whichever is killed from outside, the job costs no retry."""
    job = ranch.submit("calf")
    [(attempt, pid)] = ranch.started("calf")
    supervisor = psutil.Process(pid).ppid()
    os.kill(pid if whose == "job process" else supervisor, signal.SIGKILL)
    ranch.started("calf", 2)
    assert not alive(pid), "the first attempt is gone before the second begins"
    ranch.open_gate("calf")
    assert ranch.result(job) == "calf is done"
    assert [number for number, _ in ranch.starts("calf")] == [attempt, attempt + 1]
    ranch.end()
    assert isinstance(end_of(stories(ranch.home)[job]), JobSucceeded)


def test_killed_between_two_jobs(ranch: Ranch) -> None:
    """The next job finds a dead process in a runner that nobody knows to be dead yet."""
    with ranch.client as client:
        for _ in range(5):
            pid = client.run(os.getpid)
            assert client.run(os.getpid) == pid
            os.kill(pid, signal.SIGKILL)
            assert client.run(os.getpid) != pid


def test_killed_agent(ranch: Ranch) -> None:
    job = ranch.submit("calf")
    [(attempt, pid)] = ranch.started("calf")
    ranch.agent().kill()
    starts = ranch.started("calf", 2)
    eventually(lambda: not alive(pid), "the first attempt's process is gone")
    assert starts[1][0] > attempt
    ranch.open_gate("calf")
    assert ranch.result(job) == "calf is done"
    assert len(ranch.starts("calf")) == 2
    ranch.end()
    assert isinstance(end_of(stories(ranch.home)[job]), JobSucceeded)


def test_killed_controller_keeps_the_running_attempt(ranch: Ranch) -> None:
    calf, cow, ox = ranch.submit("calf"), ranch.submit("cow"), ranch.submit("ox")
    waiting = ranch.submit("bull")  # there are three processors: this one is sent ahead
    before = {name: ranch.started(name) for name in ("calf", "cow", "ox")}
    agent = ranch.agent()
    ranch.controller.kill()
    ranch.open_gate("cow")  # ends while nobody listens
    ranch.open_gate("ox")  # has a result that is too large for a message
    ranch.controller.start()
    assert ranch.result(cow) == "cow is done"
    assert ranch.result(ox) == "ox is done" * 2000
    ranch.open_gate("calf")
    ranch.open_gate("bull")
    assert ranch.result(calf) == "calf is done"
    assert ranch.result(waiting) == "bull is done"
    assert agent.is_running(), "the agent outlives its controller"
    assert {name: ranch.starts(name) for name in before} == before, "same attempts, same processes"
    assert len(ranch.starts("bull")) == 1
    ranch.end()
    for job in (calf, cow, ox, waiting):
        story = stories(ranch.home)[job]
        assert isinstance(end_of(story), JobSucceeded)
        assert sum(isinstance(fact, AttemptPlaced) for _, fact in story) == 1


def test_killed_controller_and_agent(ranch: Ranch) -> None:
    job = ranch.submit("calf")
    [(attempt, pid)] = ranch.started("calf")
    agent = ranch.agent()
    ranch.controller.kill()
    agent.kill()
    eventually(lambda: not alive(pid), "a runner without its agent ends itself")
    ranch.controller.start()
    ranch.started("calf", 2)
    ranch.open_gate("calf")
    assert ranch.result(job) == "calf is done"
    assert ranch.starts("calf")[1][0] > attempt
    ranch.end()
    assert isinstance(end_of(stories(ranch.home)[job]), JobSucceeded)


def _requeued(home: Path, job: str) -> bool:
    uri = f"{(home / 'journal' / 'corral.db').as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        query = "SELECT 1 FROM journal WHERE job = ? AND kind = 'JobRequeued'"
        return connection.execute(query, (job,)).fetchone() is not None


def test_sigterm_gives_grace_and_requeues_the_rest(ranch: Ranch) -> None:
    quick, slow = ranch.submit("quick"), ranch.submit("slow", cpus=2)
    ahead = ranch.submit("ahead")
    ranch.started("quick")
    [(attempt, pid)] = ranch.started("slow")
    assert ranch.controller.process is not None
    ranch.controller.process.send_signal(signal.SIGTERM)
    eventually(lambda: _requeued(ranch.home, ahead), "what had not started is given back")
    ranch.open_gate("quick")  # within the grace
    assert ranch.controller.process.wait(PATIENCE_S) == 0, ranch.controller.log
    eventually(lambda: not alive(pid), "the one that took too long is ended")
    found = stories(ranch.home)
    assert isinstance(end_of(found[quick]), JobSucceeded), "it ended within the grace"
    for job in (slow, ahead):
        last = found[job][-1][1]
        assert isinstance(last, JobRequeued), f"the rest is queued again, not {last}"
        assert last.fault == "none", "nobody is to blame for a stop"
    for name in ("slow", "ahead"):
        ranch.open_gate(name)
    ranch.controller.start()
    assert ranch.result(slow) == "slow is done"
    assert ranch.result(ahead) == "ahead is done"
    assert ranch.result(quick) == "quick is done"
    assert len(ranch.starts("quick")) == len(ranch.starts("ahead")) == 1
    assert [number > attempt for number, _ in ranch.starts("slow")] == [False, True]
    ranch.end()
    stories(ranch.home)
