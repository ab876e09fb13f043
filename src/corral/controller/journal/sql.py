"""All SQL of the journal database: its tables, and what is written and asked."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from corral.core.errors import HomeUnusable

T = TypeVar("T")

SCHEMA_VERSION = 3
SCHEMA = """
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
CREATE TABLE pruned (
    first INTEGER PRIMARY KEY,
    last  INTEGER NOT NULL,
    crc   INTEGER NOT NULL
);
CREATE TABLE history (
    job           TEXT PRIMARY KEY,
    state         TEXT NOT NULL,
    submitted_seq INTEGER NOT NULL,
    last_seq      INTEGER NOT NULL,
    ended_at      REAL NOT NULL,
    batch         TEXT NOT NULL,
    key           TEXT NOT NULL,
    submitted_at  REAL NOT NULL,
    seconds       REAL NOT NULL,
    class         TEXT NOT NULL,
    worker        TEXT NOT NULL,
    user          TEXT NOT NULL,
    name          TEXT NOT NULL,
    labels        TEXT NOT NULL,
    code          TEXT NOT NULL,
    message       TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX history_ended ON history (ended_at, state, seconds);
CREATE INDEX history_other ON history (state, job) WHERE state != 'succeeded';
CREATE INDEX history_batch ON history (batch, last_seq) WHERE batch != '';
CREATE INDEX history_key   ON history (key) WHERE key != '';
CREATE INDEX history_user  ON history (user, job) WHERE user != '';
CREATE TABLE workers (
    id   TEXT PRIMARY KEY,
    body BLOB NOT NULL
) WITHOUT ROWID;
"""
"""`history` is what ended jobs are found by; each `key=value` of `labels` is between newlines."""

PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA temp_store = MEMORY",
)

APPEND = """
INSERT INTO journal (seq, at, kind, job, prev, body, document, crc)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_RECORDS = "SELECT seq, at, kind, job, prev, body, document, crc FROM journal"
SCAN = f"{_RECORDS} ORDER BY seq"
SCAN_BACKWARDS = f"{SCAN} DESC"
SCAN_WITHIN = f"{_RECORDS} WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
LARGEST = 2**63 - 1
RECORD = f"{_RECORDS} WHERE seq = ?"
RECORDS = f"{_RECORDS} WHERE seq IN ({{marks}})"
LAST_SEQ = """
SELECT max((SELECT coalesce(max(seq), 0) FROM journal), (SELECT coalesce(max(last), 0) FROM pruned))
"""

_INTERVALS = "SELECT first, last, crc FROM pruned"
PRUNED_INTERVALS = f"{_INTERVALS} ORDER BY first"
PRUNED_WITHIN = """
SELECT first, last, crc FROM pruned
WHERE first >= (SELECT coalesce(max(first), 0) FROM pruned WHERE first <= ?) AND first <= ?
ORDER BY first
"""
PRUNED_UNTIL = f"{_INTERVALS} WHERE first <= ? ORDER BY first DESC LIMIT 1"
PRUNED_FROM = f"{_INTERVALS} WHERE first = ?"
PRUNED = "INSERT OR REPLACE INTO pruned (first, last, crc) VALUES (?, ?, ?)"
UNPRUNE = "DELETE FROM pruned WHERE first = ?"
DELETE_RECORD = "DELETE FROM journal WHERE seq = ?"
DELETE_ENDED = "DELETE FROM history WHERE job = ?"

END = """
INSERT OR REPLACE INTO history (
    job, state, submitted_seq, last_seq, ended_at, batch, key, submitted_at, seconds, class,
    worker, user, name, labels, code, message
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
NOTED = "UPDATE history SET last_seq = ? WHERE job = ?"
ENDED_JOB = "SELECT * FROM history WHERE job = ?"
ENDED_JOBS = "SELECT * FROM history WHERE job IN ({marks})"
ENDED_BY_KEYS = """
SELECT key, max(job) FROM history WHERE key IN ({marks}) AND key != '' GROUP BY key
"""
ENDED_BY_PREFIX = "SELECT job FROM history WHERE job >= ? AND job < ? LIMIT 2"
ENDED_IN_BATCH = """
SELECT * FROM history
WHERE batch = ? AND batch != '' AND last_seq > ? ORDER BY last_seq LIMIT ?
"""
ENDED_NEWEST = "SELECT max(job) FROM history"
ENDED_SINCE = """
SELECT state, count(*), sum(seconds) FROM history WHERE ended_at > ? GROUP BY state
"""
_COUNTED = """
SELECT batch, state, count(*), min(submitted_at), max(ended_at), max(job), sum(seconds),
    max(last_seq) FROM history WHERE batch != ''
"""
_APART = "GROUP BY batch, state, CASE WHEN last_seq > ? THEN job END"
"""What ended behind a record of the journal comes one by one, so that it can be told apart."""
ENDED_OF_BATCH = f"{_COUNTED} AND batch = ? {_APART}"
ENDED_BATCHES = f"{_COUNTED} {_APART}"
ENDED_BY_WORKER = """
SELECT worker, state, count(*), sum(seconds) FROM history
WHERE batch = ? AND batch != '' AND worker != '' GROUP BY worker, state
"""
ENDED_WITH_MODEL = """
SELECT worker, labels, ended_at - seconds AS began, ended_at FROM history
WHERE batch = ? AND batch != '' AND worker != '' AND instr(labels, char(10) || 'model=')
ORDER BY began
"""
ENDED_LISTED = "SELECT job FROM history WHERE {conditions} ORDER BY job DESC LIMIT ?"
"""Conditions are joined from those below; every value is bound."""
LISTED_BY = {
    "before": "job < ?",
    "batch": "batch = ? AND batch != ''",
    "user": "user = ? AND user != ''",
    "class": "class = ?",
    "since": "submitted_at >= ?",
    "until": "submitted_at < ?",
    "label": "instr(labels, ?)",
    "text": "(instr(lower(name), ?) OR instr(job, ?) OR instr(lower(message), ?) OR code = ?)",
    "not succeeded": "state != 'succeeded'",
}

LAST_ENDS = """
SELECT body FROM history JOIN journal ON journal.seq = history.last_seq
ORDER BY ended_at DESC LIMIT ?
"""
# What webhooks may have to be told. A submission that brought a webhook says so in its body.
_OWN_WEBHOOK = "instr(j.body, CAST('\"notify\":' AS BLOB))"
_SINCE = """
FROM history h JOIN journal j ON j.seq = h.submitted_seq
WHERE h.last_seq > :after AND h.last_seq <= :until
"""
_ASKED = f"(:everybody OR {_OWN_WEBHOOK})"
TOLD_SINCE = f"""
SELECT h.job, 1, h.last_seq, h.ended_at {_SINCE} AND h.state = 'failed' AND {_ASKED}
UNION ALL
SELECT h.job, 0, max(h.last_seq), h.ended_at {_SINCE} AND h.batch != '' AND {_ASKED}
GROUP BY h.batch
UNION ALL
SELECT h.job, 0, h.last_seq, h.ended_at {_SINCE} AND h.batch = '' AND {_OWN_WEBHOOK}
ORDER BY 3, 2 DESC
"""
"""What failed, the last job of each batch, and jobs of no batch."""
# The image jobs that succeeded in these records, in the order in which they did. Their submissions
# name their workload; the joins keep to this order, so that only these records are read.
IMAGES_SINCE = """
SELECT e.seq, e.job FROM journal e CROSS JOIN history h CROSS JOIN journal s
WHERE e.seq > ? AND e.seq <= ? AND e.kind = 'JobSucceeded'
AND h.job = e.job AND s.seq = h.submitted_seq
AND instr(s.body, CAST('"workload":"pipeline"' AS BLOB))
ORDER BY e.seq
"""
BATCH_BY_STATE = (
    "SELECT state, count(*) FROM history WHERE batch = ? AND batch != '' GROUP BY state"
)

KNOW_WORKER = "INSERT OR REPLACE INTO workers (id, body) VALUES (?, ?)"
WORKERS = "SELECT id, body FROM workers ORDER BY id"
ROWS_BEHIND = """
SELECT h.job, j.job, j.kind FROM history h LEFT JOIN journal j ON j.seq = h.last_seq
WHERE h.job > ? ORDER BY h.job LIMIT ?
"""
KEYS_BEHIND = """
SELECT DISTINCT key FROM history WHERE key > ? AND key != '' ORDER BY key LIMIT ?
"""

ENDED_BEFORE = "SELECT job FROM history WHERE ended_at < ? ORDER BY ended_at LIMIT ?"
ENDED_COUNT = "SELECT count(*) FROM history"
ENDED_NTH = "SELECT ended_at FROM history ORDER BY ended_at LIMIT 1 OFFSET ?"

SCAN_WITH_END = """
SELECT seq, at, kind, journal.job, prev, body, document, crc, ended_at
FROM journal LEFT JOIN history ON history.job = journal.job
WHERE seq > ? ORDER BY seq LIMIT ?
"""

TABLES = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
CHECKS = ("PRAGMA quick_check(1)", "PRAGMA integrity_check(history)")

KEYS_AT_ONCE = 500
ROWS_AT_ONCE = (100, 10, 1)


def in_marks(values: Sequence[T]) -> Iterator[tuple[Sequence[T], str]]:
    """As many at once as a statement binds, with a mark for each."""
    for first in range(0, len(values), KEYS_AT_ONCE):
        some = values[first : first + KEYS_AT_ONCE]
        yield some, ",".join("?" * len(some))


def chosen(
    connection: sqlite3.Connection, query: str, values: Sequence[str | int]
) -> Iterator[Any]:
    """The rows of these values, however many they are."""
    for some, marks in in_marks(values):
        yield from connection.execute(query.format(marks=marks), some)


def insert(connection: sqlite3.Connection, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Many rows in one statement, as far as that goes: between two of them a thread has to ask for
    Python's lock, and where the event loop is busy that takes longer than the row."""
    done = 0
    for size in ROWS_AT_ONCE:
        many = _for_rows(statement, size)
        while len(rows) - done >= size:
            connection.execute(many, [*chain.from_iterable(rows[done : done + size])])
            done += size


@cache
def _for_rows(statement: str, size: int) -> str:
    """An INSERT of one row, for several."""
    one = statement[statement.rindex("(") :].rstrip()
    return statement + f", {one}" * (size - 1)


def is_made(path: Path) -> bool:
    """Whether there is a database with our tables; refused where it is of another schema."""
    if not path.exists() or not path.stat().st_size:
        return False
    # A rollback journal is there only where the making of the database was cut off: SQLite must
    # first take that back, and may.
    cut_off = Path(f"{path}-journal").exists()
    connection = sqlite3.connect(path) if cut_off else open_read_only(path)
    with contextlib.closing(connection):
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > SCHEMA_VERSION:
        raise HomeUnusable(
            f"{path} was written by a newer Corral (schema {version}, this one knows "
            f"{SCHEMA_VERSION}). Install that version again, or choose another CORRAL_HOME."
        )
    if 0 < version < SCHEMA_VERSION:
        raise HomeUnusable(
            f"{path} was written by a Corral from before the first release (schema {version}, this "
            f"one knows {SCHEMA_VERSION}), and is not read any more. Nothing was changed. Move "
            "the home away to begin anew, or choose another CORRAL_HOME."
        )
    return version > 0


def open_read_only(path: Path) -> sqlite3.Connection:
    """Reads, and leaves every byte of database and log as it found them."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


def make(connection: sqlite3.Connection) -> None:
    """All tables, from nothing; a kill in the middle leaves none."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        # `executescript` would commit before it begins.
        for statement in SCHEMA.split(";\n"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def tables() -> list[tuple[str, ...]]:
    """What `sqlite_master` says in a database that is just made."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as new:
        make(new)
        return new.execute(TABLES).fetchall()
