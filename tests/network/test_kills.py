"""kill -9 of agents, of the controller and of job processes, on machines of their own."""

from __future__ import annotations

import os
import signal

import pytest

from corral.core.events import AttemptPlaced, JobRequeued
from tests.crash.books import stories
from tests.eventually import eventually
from tests.network.jobs import Gated, finished
from tests.network.machines import Cluster

pytestmark = pytest.mark.long


def test_killed_agents(cluster: Cluster) -> None:
    """One comes back at once, and the controller need not wait for the grace to know that its
    attempt is gone; one stays away for longer than that. Their processes end without them."""
    with cluster.client() as client:
        jobs = {name: Gated(cluster, client, f"agent-{name}") for name in ("back", "away")}
        first = {name: job.started()[0] for name, job in jobs.items()}
        on = {name: client.job(job.id).status().worker for name, job in jobs.items()}
    assert on["back"] != on["away"], "two workers are idle, so each has one"
    back, away = (cluster.workers[on[name]] for name in ("back", "away"))
    back.kill()
    away.kill()
    back.start()
    assert jobs["back"].started(2)[1][0] == 2
    assert jobs["away"].started(2)[1][0] == 2
    lives = finished(cluster, list(jobs.values()))
    assert {life.attempt for life in lives.values()} == {2}
    assert lives[jobs["away"].id].worker != away.name
    assert not away.job_processes(), f"{first['away']} outlived its agent"
    facts = [fact for _, fact in stories(cluster.controller.home)[jobs["back"].id]]
    (again,) = [fact for fact in facts if isinstance(fact, JobRequeued)]
    assert "came back without it" in again.message
    away.start()


def test_killed_controller(cluster: Cluster) -> None:
    """Every attempt goes on under its number; what ended meanwhile is told afterwards."""
    with cluster.client() as client:
        jobs = [Gated(cluster, client, f"controller-{n}") for n in range(6)]
    for job in jobs:
        job.started()
    cluster.controller.kill()
    for job in jobs[:3]:
        job.open()
    cluster.controller.start()
    lives = finished(cluster, jobs)
    assert {life.attempt for life in lives.values()} == {1}
    assert all(len(job.starts()) == 1 for job in jobs)


def test_killed_controller_and_agent(cluster: Cluster) -> None:
    with cluster.client() as client:
        job = Gated(cluster, client, "both", worker="w1")
        job.started()
    cluster.controller.kill()
    cluster.workers["w1"].kill()
    cluster.controller.start()
    cluster.workers["w1"].start()
    job.started(2)
    assert [life.attempt for life in finished(cluster, [job]).values()] == [2]


def test_killed_job_processes(cluster: Cluster) -> None:
    """It costs no retry, and nobody waits for a grace."""
    with cluster.client() as client:
        jobs = [Gated(cluster, client, f"process-{name}", worker=name) for name in cluster.workers]
    for job in jobs:
        os.kill(job.started()[0][1], signal.SIGKILL)
    for job in jobs:
        job.started(2)
    lives = finished(cluster, jobs)
    assert {life.attempt for life in lives.values()} == {2}


def test_revoked_while_cut_off(cluster: Cluster) -> None:
    """Who is told only later that it is no worker any more has lost its attempts long before."""
    worker = cluster.workers["w1"]
    with cluster.client() as client:
        job = Gated(cluster, client, "revoked")
        job.started()
        worker = cluster.workers[client.job(job.id).status().worker]
        cluster.network.cut(worker.name, "up", "down")
        client.admin.revoke_worker(worker.name)
        job.started(2)
    cluster.network.heal(worker.name)
    finished(cluster, [job])
    placed = [
        fact
        for _, fact in stories(cluster.controller.home)[job.id]
        if isinstance(fact, AttemptPlaced)
    ]
    assert [fact.attempt for fact in placed] == [1, 2]
    assert placed[0].worker != placed[1].worker
    eventually(lambda: worker.agent() is None, "it hears that it was revoked, and ends")
    assert worker.ended() == 77
