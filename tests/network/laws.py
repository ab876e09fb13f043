"""What must be true after whatever happened: the journal replays to the same state, every accepted
job has exactly one end, no attempt number repeats, and no job process is left behind."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import psutil

from corral.controller.journal.database import Journal
from corral.controller.store import Store
from corral.controller.world import World
from tests.crash.books import end_of, stories
from tests.eventually import eventually
from tests.network.machines import Cluster

LEFT_WITHIN_S = 15.0
PAGE = 500


class Told(NamedTuple):
    """What a controller says of a job."""

    state: str
    attempt: int
    worker: str


def told(cluster: Cluster, jobs: Iterable[str]) -> dict[str, Told]:
    """By its list, page by page: nobody is missing there either."""
    missing, found, before = set(jobs), dict[str, Told](), ""
    with cluster.client() as client:
        while missing and (page := client.jobs(limit=PAGE, before=before)):
            views = {view.job_id: view for view in page if view.job_id in missing}
            found |= {job: Told(v.state, v.attempt, v.worker) for job, v in views.items()}
            missing -= set(views)
            before = page[-1].job_id
    assert not missing, f"the list lacks {missing}"
    return found


def replayed(home: Path, jobs: Iterable[str]) -> dict[str, Told]:
    """The same, as a start from a copy of the journal would say it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "journal")
        copy.mkdir()
        shutil.copy(home / "journal" / "mark", copy / "mark")  # first: it must not be ahead
        uri = f"{(home / 'journal' / 'corral.db').as_uri()}?mode=ro"
        with (
            closing(sqlite3.connect(uri, uri=True)) as source,
            closing(sqlite3.connect(copy / "corral.db")) as target,
        ):
            source.backup(target)
        store = Store(Journal(copy), World())
        try:
            store.recover()
            heads = {job: store.head(job) for job in jobs}
            names = store.world.names
        finally:
            asyncio.run(store.close())
    return {
        job: Told(head.state.value, head.attempt, names.get(head.worker, head.worker))
        for job, head in heads.items()
    }


def check(cluster: Cluster, jobs: Iterable[str], starts: Iterable[tuple[int, int]] = ()) -> None:
    """`jobs` were accepted and have ended; `starts` are (attempt, pid) of processes that ran
    nothing but one of them."""
    jobs = list(jobs)
    lives = told(cluster, jobs)
    written = stories(cluster.controller.home)
    for job in jobs:
        assert end_of(written[job]) is not None, f"{job} is {lives[job]} without an end"
    assert replayed(cluster.controller.home, jobs) == lives
    processes_gone(cluster, (pid for _, pid in starts))


def processes_gone(cluster: Cluster, pids: Iterable[int] = ()) -> None:
    """Nobody is left whom no agent looks after, and none of these."""
    for worker in cluster.workers.values():
        eventually(
            lambda worker=worker: not worker.strays(),  # type: ignore[misc]
            f"nothing stray of {worker.name}",
            LEFT_WITHIN_S,
        )
    for pid in pids:
        eventually(lambda pid=pid: not alive(pid), f"process {pid} ends", LEFT_WITHIN_S)  # type: ignore[misc]


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
