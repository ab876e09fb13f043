"""kill -9 at every system call that changes a file, and a power cut at every sync."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import corral
from corral.core.errors import CorralError
from corral.core.events import JobSucceeded
from tests.crash.books import end_of, stories
from tests.crash.conftest import ROOT, Programs, complaints, same_port
from tests.eventually import eventually
from tests.live import LiveController

pytestmark = [
    pytest.mark.long,
    pytest.mark.crash,
    pytest.mark.usefixtures("watching"),
    pytest.mark.timeout(400),
]

PROCESSES = 2
BULKY_POINTS = 60
TORN = 4
SHARDS = 4
"""Tests into which one long sweep is cut, so that several processors share it."""


def test_killed_at_every_write(
    ground: Path, programs: Programs, covered: Callable[[str], None]
) -> None:
    [whole] = programs([["tests.crash.sweep", str(ground / "whole"), "1000000", "1", "1000000"]])
    # Groups of facts fall together a little differently each time: go past the usual end.
    last = whole["count"] + 20
    rows = programs(
        [
            ["tests.crash.sweep", str(ground / f"home{n}"), str(n + 1), str(PROCESSES), str(last)]
            for n in range(PROCESSES)
        ]
    )
    assert not any(row["wrong"] for row in rows), complaints(rows)
    killed = {row["number"] for row in rows if row["killed"]}
    missed = set(range(1, whole["count"] - 20)) - killed
    assert not missed, f"never killed at {sorted(missed)}"
    covered(f"killed at each of {len(killed)} writing system calls of the scenario")


def test_killed_around_checkpoints(
    ground: Path, programs: Programs, covered: Callable[[str], None]
) -> None:
    """The same with so much to write that SQLite moves its log into the database meanwhile."""
    where = ["tests.crash.sweep", str(ground / "whole"), "1000000", "1", "1000000", "bulky"]
    [whole] = programs([where])
    step = whole["count"] // BULKY_POINTS
    rows = programs(
        [
            [
                "tests.crash.sweep",
                str(ground / f"home{n}"),
                str(1 + n * step),
                str(PROCESSES * step),
                str(whole["count"]),
                "bulky",
            ]
            for n in range(PROCESSES)
        ]
    )
    assert not any(row["wrong"] for row in rows), complaints(rows)
    covered(f"killed at {len(rows)} of {whole['count']} calls of a scenario with checkpoints")


def test_power_cut_at_every_sync(
    ground: Path, programs: Programs, covered: Callable[[str], None]
) -> None:
    rows = programs(
        [
            ["tests.crash.cuts", str(ground / f"disk{n}"), str(n), str(PROCESSES), str(TORN)]
            for n in range(PROCESSES)
        ]
    )
    assert not any(row["wrong"] for row in rows), complaints(rows)
    syncs = max(row["sync"] for row in rows)
    covered(f"power cut at each of {syncs} syncs: {len(rows)} different disks")


def test_power_cut_while_learning(
    ground: Path, programs: Programs, covered: Callable[[str], None]
) -> None:
    where = [(str(ground / f"disk{n}"), str(n), str(PROCESSES)) for n in range(PROCESSES)]
    rows = programs([["tests.crash.cuts", *one, "2", "learning"] for one in where])
    assert not any(row["wrong"] for row in rows), complaints(rows)
    syncs = max(row["sync"] for row in rows)
    covered(f"power cut at each of {syncs} syncs of learning: {len(rows)} different disks")


def test_power_cut_of_a_workers_disk(
    ground: Path, programs: Programs, covered: Callable[[str], None]
) -> None:
    where = [(str(ground / f"disk{n}"), str(n), str(PROCESSES)) for n in range(PROCESSES)]
    rows = programs([["tests.crash.cuts", *one, "2", "worker"] for one in where])
    assert not any(row["wrong"] for row in rows), complaints(rows)
    syncs = max(row["sync"] for row in rows)
    covered(f"power cut at each of {syncs} syncs of a worker: {len(rows)} different disks")


class Interrupted:
    """One run of the real `corral up` with its agent, killed at its Nth write, and the next."""

    def __init__(self, folder: Path, number: int = 0) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.yard = folder / "yard"
        self.yard.mkdir(parents=True)
        self.number = number
        self.accepted: dict[str, str] = {}
        self.seen: dict[str, list[str]] = {}
        """Names of jobs whose result arrived, with the attempts that had begun by then."""
        environ = {"CORRAL_WORKER_WRITE_PATHS": f"[{self.yard}]", "CORRAL_GRACE_S": "10"}
        self.port = same_port()
        self.controller = LiveController(self.home, *self.port, environ=environ)

    def run(self) -> dict[str, Any]:
        what = [str(self.home), str(self.number), *self.port]
        watcher = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.watched_up", *what],
            cwd=ROOT,
            env=self.controller.environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        client = threading.Thread(target=self._use)
        try:
            pid = self._until_up(watcher)
            if pid is not None:
                client.start()
                eventually(
                    lambda: watcher.poll() is not None or not client.is_alive(),
                    "the end of both jobs, or of the controller",
                )
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            said, _ = watcher.communicate(timeout=60)
        finally:
            watcher.kill()
            watcher.wait()
        told: dict[str, Any] = json.loads(said)
        with self.controller:
            # A client whose controller was killed under it goes on with the next one.
            if pid is not None:
                client.join()
            self._check()
        self._check_books()
        # What lost its agent may still be on its way out of the folder.
        shutil.rmtree(self.folder, ignore_errors=True)
        return told

    def _until_up(self, watcher: subprocess.Popen[str]) -> int | None:
        """Its pid, or None where it is killed before it has a door."""

        def pid() -> int:
            with corral.Client(self.controller.address, self.controller.token) as client:
                client.health()
            return int(str(self.controller.card["pid"]))

        found = eventually(
            lambda: -1 if watcher.poll() is not None else pid(),
            "a door",
            ignoring=(OSError, ValueError, KeyError, CorralError),
        )
        return None if found == -1 else found

    def _use(self) -> None:
        """What a client gets done, before the controller is gone under it and after."""
        address, token = self.controller.address, self.controller.token
        with contextlib.suppress(CorralError, OSError, TimeoutError):
            for name, size in (("small", 10), ("large", 20_000)):
                with corral.Client(address, token) as client:
                    arguments = (str(self.yard), name, b"x" * size)
                    handle = client.submit(work, arguments, idempotency_key=name)
                    self.accepted[name] = handle.id
            for name, job in self.accepted.items():
                with corral.Client(address, token) as client:
                    assert client.job(job).result(timeout=60) == len(name)
                    self.seen[name] = self._begun(name)

    def _begun(self, name: str) -> list[str]:
        path = self.yard / name
        return path.read_text("utf-8").split() if path.exists() else []

    def _check(self) -> None:
        with corral.Client(self.controller.address, self.controller.token) as client:
            for name, job in self.accepted.items():
                assert client.job(job).result(timeout=30) == len(name), f"{name} is wrong"
            for name, begun in self.seen.items():
                assert self._begun(name) == begun, f"{name} had ended and ran again"

    def _check_books(self) -> None:
        found = stories(self.home)
        for job in self.accepted.values():
            assert isinstance(end_of(found[job]), JobSucceeded)


def work(yard: str, name: str, data: bytes) -> int:
    import os
    from pathlib import Path

    with Path(yard, name).open("a") as file:
        file.write(f"{os.environ['CORRAL_ATTEMPT']}\n")
    return len(name)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_real_controller_killed(shard: int, ground: Path, covered: Callable[[str], None]) -> None:
    whole = Interrupted(ground / "whole").run()
    assert not whole["killed"]
    count = whole["count"]
    with ThreadPoolExecutor(PROCESSES) as pool:
        numbers = range(1 + shard, count + 1, SHARDS)
        runs = [Interrupted(ground / str(n), n) for n in numbers]
        told = list(pool.map(Interrupted.run, runs))
    killed = sum(row["killed"] for row in told)
    # Runs differ by a few calls: the last ones may lie behind a run's end.
    assert killed >= 0.9 * len(runs)
    covered(f"killed the real controller at {killed} of its {count} writing calls")
