"""A worker that forks nothing, as on Windows, from submission to result: `worker.spawn`.

Everything a Windows worker runs is exercised here but for the job object and Ctrl-Break.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cloudpickle
import psutil
import pytest

import corral
from corral import job
from tests.eventually import eventually
from tests.live import LiveController

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    home = tmp_path_factory.mktemp("spawning")
    (home / "corral.yaml").write_text("cancel_grace_s: 5\nworker:\n  cpus: 2\n  spawn: true\n")
    with LiveController(home) as started:
        yield started


@pytest.fixture(scope="module")
def client(live: LiveController) -> Iterator[corral.Client]:
    with corral.Client(live.address, live.token) as made:
        yield made


def test_the_worker_says_that_nothing_is_enforced(client: corral.Client) -> None:
    client.run(os.getpid)  # it is there
    (worker,) = client.workers()
    assert worker.enforced["files"] == ""
    assert worker.enforced["duration"] == "process_tree"


def test_functions_and_a_map(client: corral.Client) -> None:
    assert client.run(lambda: 6 * 7) == 42
    assert list(client.map(lambda number: number * number, range(50))) == [
        number * number for number in range(50)
    ]


def test_output_words_artifacts_and_checkpoints(client: corral.Client) -> None:
    def talk() -> str:
        print("to stdout")
        print("to stderr", file=sys.stderr)
        os.write(1, b"past Python\n")
        job.progress(0.5, "half")
        (job.output_dir() / "kept.txt").write_text("kept")
        job.checkpoint({"step": 3})
        return str(job.restore()["step"])

    handle = client.submit(talk)
    assert handle.result(timeout=60) == "3"
    said = "".join(handle.logs())
    assert sorted(said.splitlines()) == ["past Python", "to stderr", "to stdout"]
    assert [artifact.name for artifact in handle.artifacts()] == ["kept.txt"]


def test_a_script_says_words_too(client: corral.Client, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "import sys\nfrom corral import job\njob.metric(loss=0.25, step=1)\n"
        "print('args', sys.argv[1:])\nsys.exit(int(sys.argv[1]))\n"
    )
    good = client.submit_script(tmp_path / "main.py", ["0"])
    assert "args ['0']" in "".join(good.logs())
    assert good.status().state == "succeeded"


@pytest.mark.parametrize("asks", [False, True])
def test_a_cancel_interrupts_a_function_in_its_sleep(client: corral.Client, asks: bool) -> None:
    def sleep(asks: bool) -> None:
        print("asleep", flush=True)
        try:
            while not (asks and job.cancelled()):
                time.sleep(0.01 if asks else 600)
        finally:
            print("woken")  # A process that was killed after its grace would not.

    handle = client.submit(sleep, [asks])
    next(handle.logs())
    handle.cancel()
    with pytest.raises(corral.JobCancelled):
        handle.result(timeout=30)
    assert "".join(handle.logs()) == "asleep\nwoken\n"


def test_over_its_duration_the_whole_tree_ends(client: corral.Client) -> None:
    def start_a_child() -> None:
        import subprocess

        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(child.pid, flush=True)
        time.sleep(600)

    handle = client.submit(start_a_child, duration=1)
    with pytest.raises(corral.JobFailed, match="longer than its duration"):
        handle.result(timeout=60)
    child = int("".join(handle.logs()))
    # Whoever inherited it has to take note of it.
    eventually(lambda: not psutil.pid_exists(child), "the child is gone")


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (lambda: os._exit(3), "exited with code 3"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV"),
    ],
)
def test_a_crash_has_its_reason_and_the_next_job_runs(
    client: corral.Client, end: Callable[[], None], says: str
) -> None:
    handle = client.submit(end, retries=0)
    with pytest.raises(corral.JobFailed, match=says):
        handle.result(timeout=60)
    assert client.run(lambda: "next") == "next"


def test_a_killed_agent_leaves_no_process_and_the_job_runs_again(
    client: corral.Client, live: LiveController
) -> None:
    def take_a_while() -> int:
        time.sleep(2)
        return job.attempt()

    handle = client.submit(take_a_while)
    next(event for event in handle.events() if getattr(event, "state", "") == "running")
    kit = str(live.home / "worker" / "kit")
    runners = [
        process
        for process in psutil.process_iter()
        if any(word.startswith(kit) for word in _words(process))
    ]
    assert runners
    (agent,) = [
        process
        for process in psutil.process_iter()
        if "corral.agent.main" in _words(process) and str(live.home) in _words(process)
    ]
    agent.kill()
    assert not psutil.wait_procs(runners, timeout=20)[1]
    assert handle.result(timeout=90) == 2


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
