"""Reading a journal from outside, after its controller is gone, and the laws every story in it
keeps: one end for each job, attempt numbers that only grow."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from corral.controller.history.ended import EndedJob
from corral.controller.journal import sql
from corral.controller.journal.database import Journal
from corral.controller.journal.record import JournalRecord
from corral.core.events import (
    AttemptPlaced,
    AttemptStarted,
    JobCancelled,
    JobFailed,
    JobRejected,
    JobSucceeded,
    Journaled,
)

ENDS = (JobSucceeded, JobFailed, JobCancelled, JobRejected)
Story = list[tuple[int, Journaled]]
"""A job's facts, each with its number in the journal."""


def records(home: Path) -> list[JournalRecord]:
    """All records, read without changing a byte."""
    database = home / "journal" / "corral.db"
    connection = sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)
    try:
        return [JournalRecord._make(row) for row in connection.execute(sql.SCAN)]
    finally:
        connection.close()


def history(journal: Journal) -> list[EndedJob]:
    """All rows of the history, newest first."""
    with contextlib.closing(sql.open_read_only(journal.path)) as reader:
        rows = reader.execute("SELECT * FROM history ORDER BY job DESC")
        return [EndedJob._make(row) for row in rows]


def stories(home: Path) -> dict[str, Story]:
    """Every job's story, with the laws checked."""
    found: dict[str, Story] = defaultdict(list)
    for record in records(home):
        assert record.intact(), f"record {record.seq}"
        if record.job:
            found[record.job].append((record.seq, record.fact()))
    for job, story in found.items():
        lawful(job, [fact for _, fact in story])
    return dict(found)


def lawful(job: str, facts: Iterable[Journaled]) -> None:
    facts = list(facts)
    ends = [fact for fact in facts if isinstance(fact, ENDS)]
    assert len(ends) <= 1, f"job {job} ended {len(ends)} times: {facts}"
    numbers = [fact.attempt for fact in facts if isinstance(fact, AttemptPlaced)]
    assert numbers == sorted(set(numbers)), f"attempts of job {job}: {numbers}"
    starts = [fact.attempt for fact in facts if isinstance(fact, AttemptStarted)]
    assert len(starts) == len(set(starts)), f"job {job} started twice in one attempt: {starts}"


def end_of(story: Story) -> Journaled | None:
    return next((fact for _, fact in story if isinstance(fact, ENDS)), None)
