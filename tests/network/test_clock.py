"""The wall clock jumps by an hour, forwards and back, on the controller and on workers, while jobs
run: durations, graces and retries are not measured by it."""

from __future__ import annotations

import pytest

from tests.eventually import PATIENCE_S, eventually
from tests.network.jobs import Gated, finished
from tests.network.machines import Cluster

pytestmark = pytest.mark.long

HOUR_S = 3600


@pytest.mark.parametrize("whose", ["controller", "workers"])
def test_jumps_while_jobs_run(cluster: Cluster, whose: str) -> None:
    clocks = [cluster.clock]
    if whose == "workers":
        clocks = [worker.clock for worker in cluster.workers.values()]
    with cluster.client() as client:
        jobs = []
        for number, ahead_s in enumerate((0, HOUR_S, -HOUR_S, 0)):
            for clock in clocks:
                clock.set(ahead_s)
            # Less than the hour: nobody may think that it is over.
            running = Gated(cluster, client, f"clock-{whose}-{number}", duration=1200)
            running.started()
            jobs.append(running)
            assert client.run(abs, (-number,), output=None) == number
    lives = finished(cluster, jobs)
    assert {life.attempt for life in lives.values()} == {1}
    assert all(len(job.starts()) == 1 for job in jobs)


def test_a_retry_does_not_wait_for_the_clock_to_come_again(cluster: Cluster) -> None:
    """When a job failed, the clock was an hour ahead of what it is when its retry is due."""

    def fails_once(gate: str) -> int:
        import os
        import time
        from pathlib import Path

        attempt = int(os.environ["CORRAL_ATTEMPT"])
        while attempt < 3 and not Path(gate).exists():
            time.sleep(0.01)
        if attempt < 3:
            raise ValueError("not yet")
        return attempt

    gate = cluster.yard / "retry.gate"
    with cluster.client() as client:
        cluster.clock.set(HOUR_S)
        client.admin.pause()
        job = client.submit(fails_once, (str(gate),), retries=5)
        assert job.status().state == "queued"
        client.admin.resume()
        eventually(lambda: job.status().state == "running", "it runs")
        client.admin.pause()  # no retry is placed before the clock is right again
        gate.touch()
        eventually(lambda: job.status().state == "queued", "it failed")
        cluster.clock.set(0)
        client.admin.resume()
        assert job.result(timeout=PATIENCE_S) == 3
