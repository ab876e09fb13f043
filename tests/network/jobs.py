"""Jobs that write down each of their starts and wait at a gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import corral
from tests.eventually import PATIENCE_S, eventually
from tests.network import laws
from tests.network.machines import Cluster

Start = tuple[int, int]


def gated(yard: str, name: str) -> str:
    import os
    import time
    from pathlib import Path

    attempt = os.environ["CORRAL_ATTEMPT"]
    with Path(yard, f"{name}.starts").open("a") as file:
        file.write(f"{attempt} {os.getpid()}\n")
    while not Path(yard, f"{name}.gate").exists():
        time.sleep(0.02)
    return f"{name} by {attempt}"


class Gated:
    """One such job, in a process that runs nothing else."""

    def __init__(self, cluster: Cluster, client: corral.Client, name: str, **options: Any) -> None:
        self.name, self._yard = name, cluster.yard
        assert not self.starts(), f"another test has a job {name}"
        settled = {"fresh": True, **options}
        self.handle = client.submit(gated, (str(cluster.yard), name), name=name, **settled)
        self.id = self.handle.id

    def starts(self) -> list[Start]:
        """(attempt, pid) of each start so far."""
        path = self._yard / f"{self.name}.starts"
        if not path.exists():
            return []
        return [(int(a), int(b)) for a, b in map(str.split, path.read_text("utf-8").splitlines())]

    def started(self, times: int = 1) -> list[Start]:
        eventually(lambda: len(self.starts()) >= times, f"start {times} of {self.name}")
        return self.starts()

    def open(self) -> None:
        Path(self._yard, f"{self.name}.gate").touch()


def finished(cluster: Cluster, jobs: list[Gated]) -> dict[str, laws.Told]:
    """Lets them go, and waits for the ends, with the right result of the last attempt each."""
    for job in jobs:
        job.open()
    with cluster.client() as client:
        for job in jobs:
            result = client.job(job.id).result(timeout=PATIENCE_S)
            attempt = client.job(job.id).status().attempt
            assert result == f"{job.name} by {attempt}", "the result of another attempt"
    laws.check(cluster, [job.id for job in jobs], [one for job in jobs for one in job.starts()])
    return laws.told(cluster, [job.id for job in jobs])
