"""Disks without a byte left, of a worker and of the controller: nothing accepted is lost, nothing
ends twice, and both go on by themselves once there is room."""

from __future__ import annotations

import pytest

import corral
from corral.core.errors import DiskFull, StorageFailed
from tests.eventually import PATIENCE_S, eventually
from tests.network import laws
from tests.network.jobs import Gated, finished
from tests.network.machines import Cluster

pytestmark = pytest.mark.long


def test_a_full_worker(cluster: Cluster) -> None:
    """What the others can do as well ends well; what is for this worker alone ends somehow, with a
    reason."""
    agent = cluster.workers["w2"].agent()
    assert agent is not None
    with cluster.client() as client:
        before = Gated(cluster, client, "before-full", worker="w2")
        before.started()
        with cluster.disks["w2"].full(agent.pid):
            before.open()
            anywhere = [client.submit(abs, (-n,), fresh=n % 2 == 0) for n in range(20)]
            here = [client.submit(len, ("x" * n,), fresh=n % 2 == 0, worker="w2") for n in range(6)]
            assert [job.result(timeout=PATIENCE_S) for job in anywhere] == list(range(20))
            eventually(lambda: before.handle.status().ended, "what ran there before has ended")
            eventually(lambda: all(job.status().ended for job in here), "so have the others")
            for status in (job.status() for job in here):
                assert status.state == "succeeded" or (status.failure and status.failure.message)
        assert client.run(abs, (-7,), worker="w2", fresh=True, output=None) == 7
        assert agent.is_running(), "without a restart"
    jobs = [before.id, *(job.id for job in (*anywhere, *here))]
    laws.check(cluster, jobs, before.starts())


def test_a_full_controller(cluster: Cluster) -> None:
    """No new work is taken; ends of what runs wait with the workers until they can be written."""
    process = cluster.controller.process
    assert process is not None
    with cluster.client() as client:
        jobs = [Gated(cluster, client, f"full-{name}", worker=name) for name in cluster.workers]
        for job in jobs:
            job.started()
        with cluster.disks["controller"].full(process.pid):
            assert _refused(client)
            for job in jobs:
                job.open()
            assert client.health() is not None, "it keeps answering"
        eventually(lambda: not _refused(client, 1), "it takes work again")
    lives = finished(cluster, jobs)
    assert {life.attempt for life in lives.values()} == {1}
    assert process.poll() is None, "without a restart"


def _refused(client: corral.Client, tries: int = 300) -> bool:
    """Whether no more is accepted; there may be room for a few."""
    try:
        for _ in range(tries):
            client.submit(len, ("x" * 4000,))
    except (DiskFull, StorageFailed):
        return True
    return False
