"""A journal as the first Corral left it, to be upgraded."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from corral.controller import migrations
from corral.controller.mark import Mark
from corral.controller.record import Record, record_of
from corral.core.events import (
    AttemptPlaced,
    AttemptStarted,
    JobSubmitted,
    JobSucceeded,
    Journaled,
)
from corral.core.job import Needs

VERSION_1 = """
CREATE TABLE journal (
    seq      INTEGER PRIMARY KEY,
    at       REAL    NOT NULL,
    kind     TEXT    NOT NULL,
    job      TEXT    NOT NULL,
    prev     INTEGER NOT NULL,
    body     BLOB    NOT NULL,
    document BLOB,
    crc      INTEGER NOT NULL
);
CREATE TABLE history (
    job           TEXT PRIMARY KEY,
    state         TEXT NOT NULL,
    submitted_seq INTEGER NOT NULL,
    last_seq      INTEGER NOT NULL,
    ended_at      REAL NOT NULL,
    batch         TEXT NOT NULL,
    key           TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX history_ended ON history (ended_at);
CREATE INDEX history_batch ON history (batch, last_seq) WHERE batch != '';
CREATE INDEX history_key   ON history (key) WHERE key != '';
CREATE TABLE workers (
    id   TEXT PRIMARY KEY,
    body BLOB NOT NULL
) WITHOUT ROWID;
"""
"""As the first Corral made it. This text never changes."""


def make_version_1(folder: Path) -> None:
    """A journal as the first Corral left it: an ended job and a waiting one."""
    folder.mkdir(parents=True)
    facts: list[Journaled] = [
        JobSubmitted(job="a", at=1, needs=Needs(), digest="d", key="k", batch="b"),
        JobSubmitted(job="b", at=2, needs=Needs(), digest="d"),
        AttemptPlaced(job="a", at=3, attempt=1, worker="w"),
        AttemptStarted(job="a", at=4, attempt=1),
        JobSucceeded(job="a", at=5, attempt=1, seconds=1.0),
    ]
    last: dict[str, int] = {}
    records: list[Record] = []
    for seq, fact in enumerate(facts, 1):
        document = b"document" if isinstance(fact, JobSubmitted) else None
        records.append(record_of(fact, seq, last.get(fact.job, 0), document))
        last[fact.job] = seq
    with contextlib.closing(sqlite3.connect(folder / "corral.db")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(f"{VERSION_1}PRAGMA user_version = 1;")
        connection.executemany("INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, ?)", records)
        ended = ("a", "succeeded", 1, 5, 5.0, "b", "k")
        connection.execute("INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?)", ended)
        connection.commit()
    mark = Mark(folder / "mark")
    mark.write(5)
    mark.sync()
    mark.close()


def contents(folder: Path) -> tuple[int, list[str]]:
    """Version and every row, read without changing anything."""
    with contextlib.closing(migrations.open_read_only(folder / "corral.db")) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        return version, list(connection.iterdump())
