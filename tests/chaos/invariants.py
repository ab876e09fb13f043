"""What holds at every moment and at the end. Each look counts what it looked at."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from contextlib import closing

from corral.controller.journal.record import JournalRecord
from corral.core.events import AttemptPlaced, AttemptStarted, JobFailed, JobSucceeded
from tests.chaos.history import Acknowledged, Looked, Read, Returned, Watched
from tests.chaos.work import Clients
from tests.crash.books import ENDS, lawful
from tests.network import laws
from tests.network.machines import Cluster

SINCE = """
SELECT seq, at, kind, job, prev, body, document, crc FROM journal WHERE seq > ? ORDER BY seq
"""


LAWS: dict[type, str] = {
    Acknowledged: "clients: one job for each key, at all doors",
    Looked: "clients: every job ends, once, and stays so",
    Returned: "clients: every value is the right one",
    Watched: "clients: cursors grow, nothing follows an end",
    Read: "clients: output is whole, or its gaps are marked",
}


class Violation(Exception):
    """Something that may never be was seen."""


class Invariants:
    def __init__(self, cluster: Cluster, clients: Clients) -> None:
        self._cluster, self._clients = cluster, clients
        self.held: Counter[str] = Counter()
        self._stories: dict[str, list[object]] = defaultdict(list)
        self._seq = 0

    def look(self) -> None:
        """At what was written since the last time."""
        new = self._new()
        if new is None:
            return
        touched = set()
        for record in new:
            _must(record.seq == self._seq + 1, f"record {self._seq + 1} is missing")
            _must(record.intact(), f"record {record.seq} is damaged")
            self._seq = record.seq
            if record.job:
                fact = record.fact()
                self._stories[record.job].append(fact)
                touched.add(record.job)
                if isinstance(fact, ENDS):
                    self._clients.ended.add(record.job)
        self.held["records are whole and without gaps"] += len(new)
        for job in touched:
            try:
                lawful(job, self._stories[job])  # type: ignore[arg-type]
            except AssertionError as error:
                raise Violation(str(error)) from None
        self.held["no attempt number repeats, no job ends twice"] += len(touched)
        log = self._cluster.controller.log
        _must(
            "Traceback" not in log, "the controller broke:\n" + log[log.find("Traceback") :][:2000]
        )

    def _new(self) -> list[JournalRecord] | None:
        """None while no controller has it open after a power cut: whoever only reads cannot begin
        SQLite's shared memory."""
        database = self._cluster.controller.home / "journal" / "corral.db"
        try:
            with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
                return [JournalRecord._make(row) for row in connection.execute(SINCE, (self._seq,))]
        except sqlite3.OperationalError:
            if self._cluster.controller.healthy():
                raise
            return None

    def unended(self) -> list[str]:
        return [job for job in list(self._clients.accepted) if job not in self._clients.ended]

    def final(self) -> None:
        """When everything has come to rest."""
        self.look()
        jobs = list(self._clients.accepted)
        _must(not (left := self.unended()), f"{len(left)} jobs have no end: {left[:5]}")
        self.held["every accepted job has an end"] += len(jobs)
        for job, (number, kind) in self._clients.accepted.items():
            (end,) = [fact for fact in self._stories[job] if isinstance(fact, ENDS)]
            if kind == "fails":
                right = isinstance(end, JobFailed) and f"as asked, {number}" in end.failure.message
            else:
                right = isinstance(end, JobSucceeded)
            _must(right, f"{job} ({kind} {number}) ended with {end}")
        self.held["every end is the right one"] += len(jobs)
        self._told()
        _must(
            laws.replayed(self._cluster.controller.home, jobs) == laws.told(self._cluster, jobs),
            "the journal replays to another state",
        )
        self.held["the journal replays to the same state"] += len(jobs)
        self._executions(jobs)

    def _told(self) -> None:
        """What clients saw, by itself."""
        self._clients.look_back()
        wrong = self._clients.history.violations()
        _must(
            not wrong, f"{len(wrong)} laws broken before clients' eyes:\n" + "\n".join(wrong[:10])
        )
        for entry in self._clients.history.entries():
            self.held[LAWS[type(entry)]] += 1

    def _executions(self, jobs: list[str]) -> None:
        runs = Counter(self._clients.runs)
        twice = [run for run, count in runs.items() if count > 1]
        _must(not twice, f"attempts that ran twice: {twice[:5]}")
        self.held["no attempt ran twice"] += len(runs)
        placed = {
            f"{job}.{fact.attempt}"
            for job in jobs
            for fact in self._stories[job]
            if isinstance(fact, AttemptPlaced | AttemptStarted)
        }
        foreign = [run for run in runs if run not in placed and run.split(".")[0] in set(jobs)]
        _must(not foreign, f"attempts that nobody placed: {foreign[:5]}")

    def processes(self) -> None:
        """When all agents are gone."""
        for worker in self._cluster.workers.values():
            left = worker.job_processes()
            _must(not left, f"{worker.name} left {left}")
            self.held["no job process is left behind"] += 1


def _must(true: object, otherwise: str) -> None:
    if not true:
        raise Violation(otherwise)
