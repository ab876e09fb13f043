"""Small jobs by the thousand, each with an end that is known beforehand, sent by clients at three
doors that share keys and write down what they see."""

from __future__ import annotations

import contextlib
import json
import queue
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.chaos.doors import NO_ANSWER, ByClient, ByRest, Door
from tests.chaos.history import LARGE, LINES, Acknowledged, History, Read, Returned
from tests.network.machines import Cluster

OUTSTANDING = 300
"""So many wait or run at a time."""
SHARED = 0.2
"""Of so many keys a second door sends the job too, at about the same time."""
FOLLOWED = 0.15
FOLLOWERS = 3
STOP_S = 90.0
PAUSE_S = 0.1


def work(yard: str, number: int, kind: str, seconds: float, lines: int, large: int) -> Any:
    import os
    import time
    from pathlib import Path

    run = f"{os.environ['CORRAL_JOB_ID']}.{os.environ['CORRAL_ATTEMPT']}\n".encode()
    file = os.open(Path(yard, "runs"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, run)
    os.close(file)
    if kind == "talks":
        for line in range(lines):
            print(f"{number}:{line}", flush=line % 7 == 0)
            time.sleep(seconds / lines)
    else:
        time.sleep(seconds)
    if kind == "fails":
        raise ValueError(f"as asked, {number}")
    return b"x" * large if kind == "large" else number


class Clients:
    """Submit until told to stop, follow some jobs, and look back at all of them in the end."""

    def __init__(self, cluster: Cluster, seed: int, limit: int, seconds: float) -> None:
        self._cluster, self._limit, self._seed = cluster, limit, seed
        self._pace_s = seconds / limit
        self.history = History()
        self.ended: set[str] = set()
        """Jobs that have ended, as others see it."""
        self._stop = threading.Event()
        self._sent, self._counting = 0, threading.Lock()
        self._shared: dict[str, queue.SimpleQueue[int]] = {}
        self._to_follow: queue.SimpleQueue[str] = queue.SimpleQueue()
        login = cluster.controller.home.with_name("elsewhere")
        self._makers: dict[str, Callable[[], Door]] = {
            "local": lambda: ByClient("local", cluster.controller.home),
            "gRPC": lambda: ByClient("gRPC", _logged_in(cluster, login)),
            "REST": lambda: ByRest(cluster),
        }
        self._threads = [
            *(self._thread(self._submit_all, name) for name in self._makers),
            *(self._thread(self._follow_some, name) for name in ("gRPC", "REST") * FOLLOWERS),
        ]

    def _thread(self, run: Callable[[str], None], name: str) -> threading.Thread:
        self._shared.setdefault(name, queue.SimpleQueue())
        # A controller that hangs must not keep this program from saying so.
        return threading.Thread(
            target=run, args=(name,), name=f"{name} {run.__name__}", daemon=True
        )

    @property
    def accepted(self) -> dict[str, tuple[int, str]]:
        """By id: the number and the kind of each job."""
        return self.history.acknowledged

    def start(self) -> None:
        self._begun = time.monotonic()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        until = time.monotonic() + STOP_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
            assert not thread.is_alive(), f"{thread.name} has no answer after {STOP_S:g} s"

    # --- submitting ---

    def _submit_all(self, name: str) -> None:
        door = self._makers[name]()
        while not self._stop.is_set():
            number = self._next(name)
            if number is None:
                time.sleep(PAUSE_S / 5)
                continue
            while not self._stop.is_set() and not self._submitted(door, number):
                time.sleep(PAUSE_S)  # the same key again: it tells whether it was taken
        door.close()

    def _next(self, name: str) -> int | None:
        """A number that another door shares, or a new one where it is time for it."""
        with contextlib.suppress(queue.Empty):
            return self._shared[name].get_nowait()
        with self._counting:
            number = self._sent
            early = time.monotonic() < self._begun + number * self._pace_s
            if (
                early
                or number >= self._limit
                or len(self.accepted) - len(self.ended) >= OUTSTANDING
            ):
                return None
            self._sent += 1
        if self._dice(number).random() < SHARED:
            others = [other for other in self._makers if other != name]
            self._shared[self._dice(number).choice(others)].put(number)
        return number

    def _dice(self, number: int) -> random.Random:
        return random.Random(f"work {self._seed} {number}")

    def _submitted(self, door: Door, number: int) -> bool:
        dice, key = self._dice(number), f"chaos-{number}"
        kind = dice.choices(["plain", "talks", "large", "fails", "fresh"], [65, 15, 5, 5, 3])[0]
        seconds = dice.choice([0.0, 0.0, 0.0, 0.02, 0.3])
        self.history.expect(key, number, kind)
        args = (str(self._cluster.yard), number, kind, seconds, LINES, LARGE)
        try:
            job = door.submit(work, args, key, fresh=kind == "fresh")
        except NO_ANSWER:
            return False
        self.history.add(Acknowledged(door.name, key, job))
        if dice.random() < FOLLOWED:
            self._to_follow.put(job)
        return True

    # --- following ---

    def _follow_some(self, name: str) -> None:
        door = self._makers[name]()
        while not self._stop.is_set() or not self._to_follow.empty():
            try:
                job = self._to_follow.get(timeout=PAUSE_S)
            except queue.Empty:
                continue
            # The SDK waits a minute for a lost controller; what it gives up is begun anew.
            with contextlib.suppress(*NO_ANSWER):
                for event in door.follow(job):
                    self.history.add(event)
        door.close()

    # --- looking back ---

    def look_back(self) -> None:
        """When everything has come to rest: all jobs at every door, their values and output."""
        for make in self._makers.values():
            door = make()
            for looked in door.all():
                self.history.add(looked)
            for job, (number, kind) in list(self.accepted.items()):
                # Each value at one of the doors, large ones and failures at all.
                if kind in ("large", "fails") or number % 3 == len(door.name) % 3:
                    self.history.add(Returned(door.name, job, door.value(job)))
                if kind == "talks" and (text := door.output(job)):
                    self.history.add(Read(door.name, job, text))
            door.close()

    @property
    def runs(self) -> list[str]:
        path = Path(self._cluster.yard, "runs")
        return path.read_text().splitlines() if path.exists() else []


def _logged_in(cluster: Cluster, home: Path) -> Path:
    """A home on another machine: it knows an address, a token and a certificate."""
    controller = cluster.controller
    if not (home / "login.json").exists():
        home.mkdir(exist_ok=True)
        certificate = Path(str(controller.card["certificate"])).read_text()
        told = {"address": controller.address, "token": controller.token}
        (home / "login.json").write_text(json.dumps({**told, "certificate": certificate}))
    return home
