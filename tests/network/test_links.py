"""Wires that are cut for a while, one way and both ways, and machines that stand still.

A worker that is back within the grace keeps its attempts; after it they are over, whatever is still
heard of them.
"""

from __future__ import annotations

import signal
import time
from functools import partial

import pytest

import corral
from corral.core.events import JobRequeued, ResultOrphaned
from tests.crash.books import stories
from tests.eventually import eventually
from tests.network.jobs import Gated, finished
from tests.network.machines import Cluster
from tests.network.wires import BOTH, Way

pytestmark = pytest.mark.long

CUTS: dict[str, tuple[Way, ...]] = {"w1": ("up",), "w2": ("down",), "w3": BOTH}
SHORT_S = 2.0
"""Longer than the silence that ends a conversation, shorter than the grace."""


def two_each(cluster: Cluster, what: str) -> tuple[list[Gated], list[Gated]]:
    """Two running jobs on each worker."""
    with cluster.client() as client:
        jobs = {
            (name, half): Gated(cluster, client, f"{what}-{name}-{half}", worker=name)
            for name in cluster.workers
            for half in (0, 1)
        }
    for job in jobs.values():
        job.started()
    return tuple([jobs[name, half] for name in cluster.workers] for half in (0, 1))  # type: ignore[return-value]


def out_of_reach(cluster: Cluster, what: str) -> None:
    """Each by its own cut, or as if its machine slept."""
    for name, worker in cluster.workers.items():
        if what == "cut":
            cluster.network.cut(name, *CUTS[name])
        else:
            worker.signal(signal.SIGSTOP)


@pytest.mark.parametrize("what", ["cut", "frozen"])
def test_back_within_the_grace(cluster: Cluster, what: str) -> None:
    """Nothing is lost: not what goes on running, nor what ended while nobody could hear it."""
    ending, running = two_each(cluster, f"short-{what}")
    out_of_reach(cluster, what)
    for job in ending:
        job.open()
    time.sleep(SHORT_S)  # for so long it is cut
    for name, worker in cluster.workers.items():
        cluster.network.heal(name)
        worker.signal(signal.SIGCONT)
    eventually(cluster.all_connected, "all are back")
    lives = finished(cluster, [*ending, *running])
    assert {life.attempt for life in lives.values()} == {1}
    assert all(len(job.starts()) == 1 for job in (*ending, *running)), "nothing ran twice"


@pytest.mark.parametrize("what", ["cut", "frozen"])
def test_back_after_the_grace(cluster: Cluster, what: str) -> None:
    """Its attempts are over: what they still say is kept beside the job and changes nothing."""
    ending, running = two_each(cluster, f"long-{what}")
    out_of_reach(cluster, what)
    for job in ending:
        job.open()
    # Over a wire that is cut only on the way to the worker, an end is heard.
    heard = [ending.pop(list(CUTS).index("w2"))] if what == "cut" else []
    lost = [*ending, *running]
    with cluster.client() as client:
        for job in lost:
            eventually(partial(waits, client, job), f"{job.name} waits for another worker")
    assert not cluster.connected()
    for name, worker in cluster.workers.items():
        cluster.network.heal(name)
        worker.signal(signal.SIGCONT)
    lives = finished(cluster, [*lost, *heard])
    assert {lives[job.id].attempt for job in lost} == {2}
    assert {lives[job.id].attempt for job in heard} <= {1}
    written = stories(cluster.controller.home)
    for job in lost:
        facts = [fact for _, fact in written[job.id]]
        (again,) = [fact for fact in facts if isinstance(fact, JobRequeued)]
        assert (again.code, again.attempt) == ("worker_lost", 1)
    if what == "cut":
        for job in ending:
            late = [fact for _, fact in written[job.id] if isinstance(fact, ResultOrphaned)]
            assert late, "what ended behind the cut is kept for inspection"


def waits(client: corral.Client, job: Gated) -> bool:
    return client.job(job.id).status().state == "queued"
