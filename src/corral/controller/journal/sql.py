"""All SQL of the journal database, in one place."""

from __future__ import annotations

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
"""`history` is what ended jobs are looked for by; its `labels` hold one `key=value` between
newlines."""

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
SCAN = "SELECT seq, at, kind, job, prev, body, document, crc FROM journal ORDER BY seq"
SCAN_BACKWARDS = f"{SCAN} DESC"
SCAN_WITHIN = """
SELECT seq, at, kind, job, prev, body, document, crc FROM journal
WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?
"""
LARGEST = 2**63 - 1
RECORD = "SELECT seq, at, kind, job, prev, body, document, crc FROM journal WHERE seq = ?"
RECORDS = """
SELECT seq, at, kind, job, prev, body, document, crc FROM journal WHERE seq IN ({marks})
"""
LAST_SEQ = "SELECT coalesce(max(seq), 0) FROM journal"

PRUNED_INTERVALS = "SELECT first, last, crc FROM pruned ORDER BY first"
PRUNED_WITHIN = """
SELECT first, last, crc FROM pruned
WHERE first >= (SELECT coalesce(max(first), 0) FROM pruned WHERE first <= ?) AND first <= ?
ORDER BY first
"""
PRUNED_LAST = "SELECT coalesce(max(last), 0) FROM pruned"
PRUNED_UNTIL = """
SELECT first, last, crc FROM pruned WHERE first <= ? ORDER BY first DESC LIMIT 1
"""
PRUNED_FROM = "SELECT first, last, crc FROM pruned WHERE first = ?"
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
ENDED_BY_KEY = "SELECT job FROM history WHERE key = ? AND key != '' ORDER BY job DESC LIMIT 1"
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
ENDED_OF_BATCH = """
SELECT state, count(*), min(submitted_at), max(ended_at), max(job), sum(seconds), max(last_seq)
FROM history WHERE batch = ? AND batch != '' GROUP BY state, CASE WHEN last_seq > ? THEN job END
"""
"""What ended behind a record of the journal comes one by one, so that it can be told apart."""
ENDED_BY_WORKER = """
SELECT worker, state, count(*), sum(seconds) FROM history
WHERE batch = ? AND batch != '' AND worker != '' GROUP BY worker, state
"""
ENDED_WITH_MODEL = """
SELECT worker, labels, ended_at - seconds AS began, ended_at FROM history
WHERE batch = ? AND batch != '' AND worker != '' AND instr(labels, char(10) || 'model=')
ORDER BY began
"""
ENDED_BATCHES = """
SELECT batch, state, count(*), min(submitted_at), max(ended_at), max(job), sum(seconds),
    max(last_seq)
FROM history WHERE batch != '' GROUP BY batch, state, CASE WHEN last_seq > ? THEN job END
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
FROM history h JOIN journal j ON j.seq = h.submitted_seq WHERE h.last_seq > ? AND h.last_seq <= ?
"""
FAILED_SINCE = f"""
SELECT h.job, 1, h.last_seq, h.ended_at {_SINCE} AND h.state = 'failed' AND (? OR {_OWN_WEBHOOK})
"""
LAST_OF_BATCHES_SINCE = f"""
SELECT h.job, 0, max(h.last_seq), h.ended_at {_SINCE} AND h.batch != '' AND (? OR {_OWN_WEBHOOK})
GROUP BY h.batch
"""
ENDED_ALONE_SINCE = f"""
SELECT h.job, 0, h.last_seq, h.ended_at {_SINCE} AND h.batch = '' AND {_OWN_WEBHOOK}
"""
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
HISTORY = "SELECT * FROM history"
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
