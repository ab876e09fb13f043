"""The journal on disk: numbered, checksummed, chained records in SQLite, and how they are read.

The journal is the truth. `history` is only an index of ended jobs, and is never trusted for
recovery. One thread writes; reads use a connection of their own. Nothing is written before the
journal is proven whole: opening a damaged one changes no byte of it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from corral.controller import sql
from corral.controller.ended import Ended
from corral.controller.mark import Mark
from corral.core.errors import HomeUnusable, JournalDamaged, StorageFailed
from corral.core.events import Journaled, decode_fact
from corral.core.worker import Worker
from corral.home import sync_folder

log = structlog.get_logger()


REPAIRED = "JournalRepaired"
"""The one kind that is no fact about a job: everything before it that is missing is known to be."""


UNREADABLE = (sqlite3.DatabaseError, UnicodeDecodeError)
"""What reading damaged pages raises; the second where not even SQLite's own message is text."""


class Record(NamedTuple):
    seq: int
    at: float
    kind: str
    job: str
    prev: int
    """The record of the same job before this one, 0 for its first: a chain, and no index."""
    body: bytes
    document: bytes | None
    crc: int

    def intact(self) -> bool:
        try:
            return self.crc == checksum(*self[:-1])
        except (TypeError, ValueError):  # a flipped bit may change a column's very type
            return False

    def fact(self) -> Journaled:
        return decode_fact(self.body)


class Write(NamedTuple):
    """One transaction."""

    records: Sequence[Record]
    ends: Sequence[Ended] = ()
    noted: Sequence[tuple[int, str]] = ()
    workers: Sequence[Worker] = ()


def checksum(
    seq: int, at: float, kind: str, job: str, prev: int, body: bytes, document: bytes | None
) -> int:
    crc = zlib.crc32(f"{seq}|{float(at)!r}|{kind}|{job}|{prev}|".encode())
    crc = zlib.crc32(body, crc)
    return zlib.crc32(document, crc) if document is not None else crc


def sealed(
    seq: int, at: float, kind: str, job: str, prev: int, body: bytes, document: bytes | None
) -> Record:
    crc = checksum(seq, at, kind, job, prev, body, document)
    return Record(seq, at, kind, job, prev, body, document, crc)


class Journal:
    """An open journal, made if it is new. `verified` proves it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "corral.db"
        self._writer: sqlite3.Connection | None = None
        self.mark = Mark(folder / "mark")
        try:
            with self._asked():
                if _version(self.path) == 0:
                    if self.mark.seq:
                        raise lost(1, "the database is empty or gone")
                    self._make()
                self._reader = open_read_only(self.path)
                if self.mark.seq is None and self.last_seq() == 0:
                    self.mark.write(0)
            sync_folder(folder)
        except BaseException:
            self.mark.close()
            raise

    def _make(self) -> None:
        writer = self._open_writer()
        steps = "".join(sql.STEPS.values())
        writer.executescript(
            f"BEGIN IMMEDIATE;{sql.SCHEMA}{steps}PRAGMA user_version = {sql.SCHEMA_VERSION};COMMIT;"
        )

    def _open_writer(self) -> sqlite3.Connection:
        self._writer = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        for pragma in sql.PRAGMAS:
            self._writer.execute(pragma)
        return self._writer

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        """Database errors outside the scan, in sentences."""
        try:
            yield
        except UNREADABLE as error:
            name = getattr(error, "sqlite_errorname", "")
            if name.startswith(_NO_ROOM):
                raise HomeUnusable(
                    f"{self.path} cannot be opened ({error}). See that the disk has space left "
                    "and that the folder is yours, then start again."
                ) from error
            raise JournalDamaged(
                f"{self.path} cannot be read as a database ({error}). Run `corral repair` to save "
                "what is intact."
            ) from error

    def close(self) -> None:
        self._reader.close()
        if self._writer is not None:
            self._writer.close()
        self.mark.close()

    def confirm(self, seq: int) -> None:
        """Everything up to `seq` was read back and will be acted upon: now it is promised. A
        process killed in the middle may have left it in the page cache alone."""
        if self.mark.seq is not None and self.mark.seq >= seq:
            return
        with contextlib.suppress(FileNotFoundError), open(f"{self.path}-wal", "rb") as file:
            os.fsync(file.fileno())
        self.mark.write(seq)

    # --- writing (the writer's thread) ---

    def write(self, group: Write) -> None:
        """One transaction, durable when this returns; nothing of it is kept when it raises."""
        connection = self._writer
        try:
            connection = connection or self._open_writer()
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(sql.APPEND, group.records)
            if group.ends:
                connection.executemany(sql.END, group.ends)
            if group.noted:
                connection.executemany(sql.NOTED, group.noted)
            if group.workers:
                rows = [(worker.id, msgspec.json.encode(worker)) for worker in group.workers]
                connection.executemany(sql.KNOW_WORKER, rows)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection is not None and connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            failed = StorageFailed(
                f"The journal in {self.folder} could not be written ({error}). Nothing that was "
                "acknowledged is lost. Free some space, then submit again."
            )
            # A full disk leaves the transaction out, surely. After any other error nobody knows
            # what reached the disk, and a second sync would lie.
            failed.fatal = not error.sqlite_errorname.startswith(_NO_ROOM)
            raise failed from error
        if group.records:
            try:
                self.mark.write(group.records[-1].seq)
            except OSError as error:
                # The records are safe. A mark that lags only promises less.
                log.warning("mark_not_written", error=str(error))

    # --- reading (the event loop's thread) ---

    def last_seq(self) -> int:
        return int(self._reader.execute(sql.LAST_SEQ).fetchone()[0])

    def scan(self) -> Iterator[Record]:
        return map(Record._make, self._reader.execute(sql.SCAN))

    def record(self, seq: int) -> Record:
        with self._asked():
            row = self._reader.execute(sql.RECORD, (seq,)).fetchone()
        if row is None:
            raise JournalDamaged(f"Record {seq} of the journal is missing. Run `corral repair`.")
        record = Record._make(row)
        if not record.intact():
            raise JournalDamaged(f"Record {seq} of the journal is damaged. Run `corral repair`.")
        return record

    def chain(self, last_seq: int, after: int = 0) -> list[Record]:
        """All records of one job behind `after`, oldest first."""
        records = []
        seq = last_seq
        while seq > after:
            record = self.record(seq)
            records.append(record)
            seq = record.prev
        records.reverse()
        return records

    def document(self, submitted_seq: int) -> bytes:
        document = self.record(submitted_seq).document
        assert document is not None, "a submission carries its document"
        return document

    def ended(self, job: str) -> Ended | None:
        row = self._reader.execute(sql.ENDED_JOB, (job,)).fetchone()
        return Ended._make(row) if row else None

    def ended_by_key(self, key: str) -> str | None:
        row = self._reader.execute(sql.ENDED_BY_KEY, (key,)).fetchone()
        return str(row[0]) if row else None

    def ended_by_prefix(self, prefix: str) -> list[str]:
        above = prefix + "\x7f"
        return [str(row[0]) for row in self._reader.execute(sql.ENDED_BY_PREFIX, (prefix, above))]

    def ended_in_batch(self, batch: str, after: int, limit: int) -> list[Ended]:
        rows = self._reader.execute(sql.ENDED_IN_BATCH, (batch, after, limit))
        return [Ended._make(row) for row in rows]

    def ended_newest(self) -> str | None:
        """The id of the newest job that has ended."""
        found = self._reader.execute(sql.ENDED_NEWEST).fetchone()[0]
        return None if found is None else str(found)

    def workers(self) -> list[Worker]:
        """Workers met before. One whose row is damaged introduces itself anew when it is back."""
        decode = msgspec.json.Decoder(Worker).decode
        found = []
        with self._asked():
            for worker_id, body in self._reader.execute(sql.WORKERS):
                try:
                    worker = decode(body)
                except (msgspec.MsgspecError, UnicodeDecodeError):
                    log.warning("worker_row_damaged", worker=worker_id)
                    continue
                if worker.id == worker_id:
                    found.append(worker)
        return found

    def damage(self) -> str:
        """What SQLite itself finds wrong with its pages, and with the index of ended jobs."""
        try:
            for check in sql.CHECKS:
                found = self._reader.execute(check).fetchone()[0]
                if found != "ok":
                    return str(found)
            with contextlib.closing(sqlite3.connect(":memory:")) as new:
                new.executescript(sql.SCHEMA + "".join(sql.STEPS.values()))
                expected = new.execute(sql.TABLES).fetchall()
            same = self._reader.execute(sql.TABLES).fetchall() == expected
        except UNREADABLE as error:
            return str(error)
        return "" if same else "its tables are not those that were made"

    def history(self) -> Iterator[Ended]:
        return map(Ended._make, self._reader.execute(sql.HISTORY))


_NO_ROOM = (
    "SQLITE_FULL",
    "SQLITE_CANTOPEN",
    "SQLITE_READONLY",
    "SQLITE_IOERR_WRITE",
    "SQLITE_IOERR_SHM",
)
"""Errors after which the transaction is surely out, and nothing is wrong with what is in."""


def open_read_only(path: Path) -> sqlite3.Connection:
    """Reads, and leaves every byte of database and log as it found them."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


def _version(path: Path) -> int:
    """The schema in the file, 0 where there is none yet; refused if a newer Corral made it."""
    if not path.exists() or not path.stat().st_size:
        return 0
    # A rollback journal is there only where the making of the database was cut off: SQLite must
    # first take that back, and may.
    cut_off = Path(f"{path}-journal").exists()
    connection = sqlite3.connect(path) if cut_off else open_read_only(path)
    try:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    finally:
        connection.close()
    if version > sql.SCHEMA_VERSION:
        raise HomeUnusable(
            f"{path} was written by a newer Corral (schema {version}, this one knows "
            f"{sql.SCHEMA_VERSION}). Install that version again, or choose another CORRAL_HOME."
        )
    return version


def verified(journal: Journal) -> Iterator[Record]:
    """Every record in order, each proven; raises JournalDamaged that names the first lost one.

    Records above the mark were never acknowledged: SQLite kept them whole or not at all.
    """
    marked = journal.mark.seq
    expected = 1
    try:
        for record in journal.scan():
            if record.kind == REPAIRED and record.intact():
                expected = record.seq
            if record.seq != expected:
                raise lost(expected, f"{record.seq - expected} missing")
            if not record.intact():
                raise lost(record.seq, "its checksum does not match")
            expected += 1
            yield record
    except UNREADABLE as error:
        raise lost(expected, str(error)) from error
    if marked is not None and expected <= marked:
        raise lost(expected, f"{marked - expected + 1} acknowledged records are gone")
    if marked is None and expected > 1:
        raise JournalDamaged(
            f"The journal's mark {journal.folder / 'mark'} is missing or damaged, so nothing says "
            f"whether records after {expected - 1} are lost. Run `corral repair` to go on."
        )
    if damage := journal.damage():
        raise index_damaged(damage)


def lost(seq: int, reason: str) -> JournalDamaged:
    return JournalDamaged(
        f"The journal is damaged: record {seq} is the first one lost ({reason}). Nothing was "
        "changed. Restore a backup, or run `corral repair` to go on with what is intact.",
        details={"first_lost": seq},
    )


def index_damaged(reason: str) -> JournalDamaged:
    return JournalDamaged(
        f"The journal's records are whole, but the database around them is damaged ({reason}). "
        "Nothing was changed. Run `corral repair`: it builds a new one, and no job is lost."
    )
