"""Small jobs by the thousand, each with an end that is known beforehand."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

from corral.core.errors import CorralError
from tests.network.machines import Cluster

OUTSTANDING = 300
"""So many wait or run at a time."""
LARGE = 20_000
STOP_S = 30.0


def work(yard: str, number: int, kind: str, seconds: float) -> Any:
    import os
    import time
    from pathlib import Path

    run = f"{os.environ['CORRAL_JOB_ID']}.{os.environ['CORRAL_ATTEMPT']}\n".encode()
    file = os.open(Path(yard, "runs"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, run)
    os.close(file)
    time.sleep(seconds)
    if kind == "fails":
        raise ValueError(f"as asked, {number}")
    if kind == "talks":
        print("moo\n" * 50)
    return b"x" * LARGE if kind == "large" else number


class Drover:
    """Submits until told to stop, in a thread of its own."""

    def __init__(self, cluster: Cluster, seed: int, limit: int, seconds: float) -> None:
        self._cluster, self._limit = cluster, limit
        self._pace_s = seconds / limit
        self._dice = random.Random(f"work {seed}")
        self.accepted: dict[str, tuple[int, str]] = {}
        """By id: the number and the kind of each job."""
        self.ended = 0
        """How many have ended, as others see it."""
        self._stop = threading.Event()
        # A controller that hangs must not keep this program from saying so.
        self._thread = threading.Thread(target=self._run, name="drover", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(STOP_S)
        assert not self._thread.is_alive(), f"a submission has no answer after {STOP_S:g} s"

    def _run(self) -> None:
        number, begun = 0, time.monotonic()
        while not self._stop.is_set() and number < self._limit:
            try:
                with self._cluster.client() as client:
                    while not self._stop.is_set() and number < self._limit:
                        early = time.monotonic() < begun + number * self._pace_s
                        if early or len(self.accepted) - self.ended >= OUTSTANDING:
                            time.sleep(0.02)
                            continue
                        self._submit(client, number)
                        number += 1
            except (CorralError, OSError, ValueError):
                time.sleep(0.1)  # the same number again: its key tells whether it was taken

    def _submit(self, client: Any, number: int) -> None:
        dice = random.Random(f"{self._dice.random()} {number}")
        kind = dice.choices(["plain", "talks", "large", "fails", "fresh"], [70, 10, 5, 5, 3])[0]
        seconds = dice.choice([0.0, 0.0, 0.0, 0.02, 0.3])
        handle = client.submit(
            work,
            (str(self._cluster.yard), number, kind, seconds),
            fresh=kind == "fresh",
            idempotency_key=f"chaos-{number}",
            name=f"{kind}-{number}",
        )
        known = self.accepted.setdefault(handle.id, (number, kind))
        assert known == (number, kind), f"{handle.id} was given to two jobs"

    @property
    def runs(self) -> list[str]:
        path = Path(self._cluster.yard, "runs")
        return path.read_text().splitlines() if path.exists() else []
