"""Output is as honest as results: kill -9 of the controller loses none of it, and what a power cut
takes is a marked gap."""

from __future__ import annotations

import os
import threading
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

import corral
from corral.agent.outbox import KEPT
from corral.agent.runners.process_tree import marked
from corral.contract import views
from tests.crash.conftest import same_port
from tests.eventually import eventually
from tests.live import LiveController

pytestmark = [pytest.mark.crash, pytest.mark.long]

LINES = 400_000
KILLS = 3
SIZE = len("line 000000\n")


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[LiveController]:
    """It comes back where it was, for the worker and for readers."""
    flags = [*same_port(), "--grpc-port", same_port()[1]]
    environ = {"CORRAL_WORKER_READ_PATHS": f"[{tmp_path}]", "CORRAL_GRACE_S": "10"}
    with LiveController(tmp_path / "home", *flags, environ=environ) as made:
        yield made
    eventually(lambda: not marked(str(made.home / "worker")), "all job processes are gone")


def count(lines: int) -> int:
    from corral import job

    for number in range(lines):
        print(f"line {number:06d}")
        if number % 1000 == 0:
            job.metric(at=number)
    return lines


def spool_files(controller: LiveController) -> list[Path]:
    files = [path for path in (controller.home / "spool").rglob("*") if path.is_file()]
    return sorted(files, key=lambda path: path.name)


def has_output(controller: LiveController, size: int) -> bool:
    return sum(path.stat().st_size for path in spool_files(controller)) > size


class Follower(threading.Thread):
    """Reads along, over every restart, as `corral logs --follow` does."""

    def __init__(self, home: Path, job: str) -> None:
        super().__init__(daemon=True)
        self._home, self._job = home, job
        self.text = ""
        self.metrics: list[int] = []
        self.cursors: list[tuple[int, ...]] = []
        self.start()

    def run(self) -> None:
        with corral.Client(home=self._home) as client:
            for event in client.job(self._job).events():
                self.cursors.append(tuple(map(int, event.cursor.split("."))))
                if isinstance(event, views.Output):
                    self.text += event.data.decode() or f"[{event.skipped}]\n"
                elif isinstance(event, views.Progress) and event.metrics:
                    self.metrics.append(int(event.metrics["at"]))


def test_killed_controller_loses_no_output(controller: LiveController) -> None:
    with corral.Client(home=controller.home) as client:
        handle = client.submit(count, (LINES,))
        follower = Follower(controller.home, handle.id)
        for kill in range(KILLS):
            wanted = LINES * SIZE * (kill + 1) // (KILLS + 2)
            eventually(partial(has_output, controller, wanted), f"output before kill {kill}")
            controller.kill()
            controller.start()
        assert handle.result(60) == LINES
        kept = "".join(handle.logs())
    follower.join(60)
    for told in (kept, follower.text):
        numbers = [int(line[5:]) for line in told.splitlines()]
        assert [at for at, number in enumerate(numbers) if number != at] == []
        assert len(numbers) == LINES
    assert follower.metrics == list(range(0, LINES, 1000))
    assert follower.cursors == sorted(follower.cursors)


def test_a_power_cut_of_the_spool_is_a_marked_gap(controller: LiveController) -> None:
    """The journal is synced, the spool is not: a job's end may be there without its output."""
    lines = 5000
    with corral.Client(home=controller.home) as client:
        handles = [client.submit(count, (lines,)) for _ in range(3)]
        assert [handle.result(30) for handle in handles] == [lines] * 3
        before = "".join(handles[0].logs())
        assert before.count("\n") == lines
        controller.kill()
        for handle, left in zip(handles, (None, 0, 300), strict=True):
            [file] = [path for path in spool_files(controller) if handle.id in str(path)]
            if left is None:
                file.unlink()
            else:
                os.truncate(file, left)
        controller.start()
        for handle in handles:
            told = "".join(handle.logs())
            assert by_rest(controller, handle.id) == told
            kept, _, rest = told.partition("\n[… ")
            missing, _, behind = rest.partition(" ")
            assert behind == "bytes left out …]\n"
            # Each metric counts as one.
            assert 0 <= int(missing) - len(before.removeprefix(kept)) <= lines // 1000
            assert "".join(handle.logs()) == told, "and it is marked once"


def wait_and_count(gate: str, lines: int) -> int:
    import time
    from pathlib import Path

    print("waiting")
    while not Path(gate).exists():
        time.sleep(0.01)
    for number in range(lines):
        print(f"line {number:06d}")
    return lines


def test_output_that_died_with_its_agent_is_a_marked_gap(
    controller: LiveController, tmp_path: Path
) -> None:
    """The result is on the worker's disk by then, and says how much there was."""
    lines, gate = 1000, tmp_path / "gate"
    with corral.Client(home=controller.home) as client:
        handle = client.submit(wait_and_count, (str(gate), lines))
        eventually(lambda: "waiting" in "".join(handle.logs(follow=False)), "a start")
        agent = agent_of(controller)
        controller.kill()
        gate.touch()
        kept = controller.home / "worker" / KEPT
        eventually(lambda: kept.exists() and kept.read_bytes().endswith(b"}\n"), "a kept result")
        agent.kill()
        controller.start()
        assert handle.result(30) == lines
        told = "".join(handle.logs())
    assert told == f"waiting\n\n[… {lines * SIZE} bytes left out …]\n"


def agent_of(controller: LiveController) -> psutil.Process:
    assert controller.process is not None
    for process in psutil.Process(controller.process.pid).children(recursive=True):
        if "corral.agent.main" in process.cmdline():
            return process
    raise AssertionError("no agent")


def by_rest(controller: LiveController, job: str) -> str:
    headers = {"Authorization": f"Bearer {controller.token}"}
    request = urllib.request.Request(f"{controller.url}/jobs/{job}/output", headers=headers)
    with urllib.request.urlopen(request) as answer:
        text: str = answer.read().decode()
        return text
