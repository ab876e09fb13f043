"""The journal on disk: numbered, checksummed, chained records in SQLite, and how they are read.

The journal is the truth. `history` is only an index of ended jobs, and is never trusted for
recovery. One thread writes; reads use a connection of their own. Nothing is written before the
journal is proven whole: opening a damaged one changes no byte of it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import structlog

from corral.controller.history.ended import EndedJob, UsedKeys
from corral.controller.journal import pruned, sql
from corral.controller.journal.mark import Mark
from corral.controller.journal.record import UNREADABLE, JournalRecord, lost
from corral.core.errors import HomeUnusable, JobNotFound, JournalDamaged, StorageFailed
from corral.core.events import Journaled, decode_fact
from corral.core.lifecycle import STORED
from corral.core.worker import Worker
from corral.home import sync_folder

log = structlog.get_logger()


_STORED = frozenset(kind.__name__ for kind in STORED)


class Journal:
    """An open journal, made if it is new. `verified` proves it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "corral.db"
        self._writer: sqlite3.Connection | None = None
        self._used_keys, self._knows_keys = UsedKeys(), False
        """Of jobs that ended since; once somebody has read the others, of all."""
        self.mark = Mark(folder / "mark")
        try:
            with self._asked():
                if not sql.is_made(self.path):
                    if self.mark.seq:
                        raise lost(1, "the database is empty or gone")
                    sql.make(self._open_writer())
                self._reader = sql.open_read_only(self.path)
                if self.mark.seq is None and self.last_seq() == 0:
                    self.mark.write(0)
                    self.mark.sync()
            sync_folder(folder)
        except BaseException:
            self.mark.close()
            raise

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
        self.mark.sync()

    # --- writing (the writer's thread) ---

    def write(
        self,
        records: Sequence[JournalRecord],
        ends: Sequence[EndedJob] = (),
        noted: Sequence[tuple[int, str]] = (),
        workers: Sequence[Worker] = (),
    ) -> None:
        """One transaction, durable when this returns; nothing of it is kept when it raises."""
        connection = self._writer
        try:
            connection = connection or self._open_writer()
            connection.execute("BEGIN IMMEDIATE")
            sql.insert(connection, sql.APPEND, records)
            if ends:
                for ended in ends:
                    self._used_keys.add(ended.key)
                sql.insert(connection, sql.END, ends)
            if noted:
                connection.executemany(sql.NOTED, noted)
            if workers:
                rows = [(_row(worker), msgspec.json.encode(worker)) for worker in workers]
                connection.executemany(sql.KNOW_WORKER, rows)
            connection.execute("COMMIT")
        except (sqlite3.Error, MemoryError) as error:  # the second is SQLite's, too
            raise self._not_written(error) from error
        if records:
            try:
                self.mark.write(records[-1].seq)
            except OSError as error:
                # The records are safe. A mark that lags only promises less.
                log.warning("mark_not_written", error=str(error))

    def _not_written(self, error: sqlite3.Error | MemoryError) -> StorageFailed:
        if self._writer is not None and self._writer.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._writer.execute("ROLLBACK")
        # A full disk leaves the transaction out, surely. After any other error nobody knows
        # what reached the disk, and a second sync would lie.
        fatal = not getattr(error, "sqlite_errorname", "").startswith(_NO_ROOM)
        then = (
            "The controller ends, and nobody knows whether this is on the disk. Start it again, "
            "then submit again with the same idempotency key."
            if fatal
            else "Free some space, then submit again."
        )
        failed = StorageFailed(
            f"The journal in {self.folder} could not be written ({error or 'no memory'}). Nothing "
            f"that was acknowledged is lost. {then}"
        )
        failed.fatal = fatal
        return failed

    def prune(self, jobs: Sequence[str], within_s: float) -> pruned.Slice:
        """Removes ended jobs, as many as it finds time for, in one transaction."""
        try:
            return pruned.remove(self._writer or self._open_writer(), jobs, within_s)
        except (sqlite3.Error, MemoryError) as error:
            raise self._not_written(error) from error

    def skip_to(self, seq: int) -> None:
        """Leaves out the numbers from the last record up to this one, and says so."""
        writer = self._writer or self._open_writer()
        writer.execute("BEGIN IMMEDIATE")
        pruned.note_run(writer, self.last_seq() + 1, seq)
        writer.execute("COMMIT")

    def know_keys(self, used: UsedKeys) -> None:
        """From now on the disk is asked only about keys that may have been used."""
        self._used_keys.update(used)
        self._knows_keys = True

    def sync_mark(self) -> None:
        """Makes the mark safe from a power cut."""
        try:
            self.mark.sync()
        except OSError as error:
            log.warning("mark_not_written", error=str(error))

    # --- reading (the event loop's thread) ---

    def last_seq(self) -> int:
        return int(self._reader.execute(sql.LAST_SEQ).fetchone()[0])

    @contextlib.contextmanager
    def one_moment(self) -> Iterator[None]:
        """All that is read inside is as of one moment, whatever is written meanwhile. Not for
        long: SQLite's log can only grow until it is over."""
        self._reader.execute("BEGIN")
        try:
            yield
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._reader.execute("ROLLBACK")

    def pruned(self, after: int = 0, until: int | None = None) -> list[pruned.Interval]:
        """Intervals that begin behind `after` and up to `until`, and the one before them."""
        rows = self._reader.execute(sql.PRUNED_WITHIN, (after, until or sql.LARGEST))
        return [pruned.Interval._make(row) for row in rows]

    def scan(
        self, after: int = 0, until: int | None = None, limit: int | None = None
    ) -> Iterator[JournalRecord]:
        within = (after, until or sql.LARGEST, limit or sql.LARGEST)
        return map(JournalRecord._make, self._reader.execute(sql.SCAN_WITHIN, within))

    def record(self, seq: int) -> JournalRecord:
        with self._asked():
            row = self._reader.execute(sql.RECORD, (seq,)).fetchone()
            forgotten = row is None and pruned.covers(self._reader, seq)
        if forgotten:
            raise JobNotFound("This job ended so long ago that it was removed from the history.")
        if row is None:
            raise JournalDamaged(f"Record {seq} of the journal is missing. Run `corral repair`.")
        record = JournalRecord._make(row)
        if not record.intact():
            raise JournalDamaged(f"Record {seq} of the journal is damaged. Run `corral repair`.")
        return record

    def records(self, seqs: Sequence[int]) -> list[JournalRecord]:
        """Several, each proven, without their documents."""
        found: dict[int, JournalRecord] = {}
        with self._asked():
            for row in sql.chosen(self._reader, sql.RECORDS, seqs):
                if record := JournalRecord.of(row):
                    found[record.seq] = record.without_document()
        for seq in seqs:
            if seq not in found:
                self.record(seq)  # raises, and says why
        return [found[seq] for seq in seqs]

    def is_pruned(self, seq: int) -> bool:
        return pruned.covers(self._reader, seq)

    def backwards(self, last_seq: int, after: int = 0) -> Iterator[JournalRecord]:
        """All records of one job behind `after`, the newest first, as far as somebody reads."""
        seq = last_seq
        while seq > after:
            record = self.record(seq)
            yield record
            seq = record.prev

    def story(self, last_seq: int) -> list[JournalRecord]:
        """A job's records without what it stored on the way, oldest first."""
        records, seq = [], last_seq
        while seq:
            record = self.record(seq)
            seq = record.prev
            if record.kind in _STORED:
                stored = record.fact()
                assert isinstance(stored, STORED)
                seq = stored.after or seq  # older ones do not say what was before
            else:
                records.append(record)
        records.reverse()
        return records

    def document(self, submitted_seq: int) -> bytes:
        document = self.record(submitted_seq).document
        assert document is not None, "a submission carries its document"
        return document

    def documents(self, seqs: Sequence[int]) -> dict[int, bytes]:
        """The documents of several submissions at once; of those that cannot be read, none."""
        found: dict[int, bytes] = {}
        for some, marks in sql.in_marks(seqs):
            with contextlib.suppress(*UNREADABLE):
                for row in self._reader.execute(sql.RECORDS.format(marks=marks), some):
                    record = JournalRecord.of(row)
                    if record is not None and record.document is not None:
                        found[record.seq] = record.document
        return found

    def ended(self, job: str) -> EndedJob | None:
        row = self._reader.execute(sql.ENDED_JOB, (job,)).fetchone()
        return EndedJob._make(row) if row else None

    def ended_by_keys(self, keys: Sequence[str]) -> dict[str, str]:
        """The jobs that had these idempotency keys, as far as there are any."""
        if self._knows_keys:
            keys = [key for key in keys if self._used_keys.perhaps(key)]
        return dict(sql.chosen(self._reader, sql.ENDED_BY_KEYS, keys))

    def ended_by_prefix(self, prefix: str) -> list[str]:
        above = prefix + "\x7f"
        return [str(row[0]) for row in self._reader.execute(sql.ENDED_BY_PREFIX, (prefix, above))]

    def ended_in_batch(self, batch: str, after: int, limit: int) -> list[EndedJob]:
        rows = self._reader.execute(sql.ENDED_IN_BATCH, (batch, after, limit))
        return [EndedJob._make(row) for row in rows]

    def ended_newest(self) -> str | None:
        found = self._reader.execute(sql.ENDED_NEWEST).fetchone()[0]
        return None if found is None else str(found)

    def last_ends(self, limit: int) -> list[Journaled]:
        """How the jobs that ended last did, oldest first; a later note stands in for some."""
        rows = self._reader.execute(sql.LAST_ENDS, (limit,)).fetchall()
        return [decode_fact(row[0]) for row in reversed(rows)]

    def workers(self) -> list[Worker]:
        """Workers met before. One whose row is damaged introduces itself anew when it is back."""
        decode = msgspec.json.Decoder(Worker).decode
        found = []
        with self._asked():
            for row, body in self._reader.execute(sql.WORKERS):
                try:
                    worker = decode(body)
                except (msgspec.MsgspecError, UnicodeDecodeError):
                    log.warning("worker_row_damaged", worker=row)
                    continue
                if row == _row(worker):
                    found.append(worker)
        return found

    def interrupt_when(self, due: Callable[[], bool]) -> None:
        """Reads end with an error once this says so: for who looks only for a while."""
        self._reader.set_progress_handler(due, 10_000)

    def damage(self) -> str:
        """What SQLite itself finds wrong with its pages, and with the index of ended jobs."""
        try:
            for check in sql.CHECKS:
                found = self._reader.execute(check).fetchone()[0]
                if found != "ok":
                    return str(found)
            return "" if self.has_its_tables() else "its tables are not those that were made"
        except UNREADABLE as error:
            return str(error)

    def has_its_tables(self) -> bool:
        return self._reader.execute(sql.TABLES).fetchall() == sql.tables()

    def rows(self, jobs: Sequence[str]) -> dict[str, EndedJob]:
        rows = map(EndedJob._make, sql.chosen(self._reader, sql.ENDED_JOBS, jobs))
        return {row.job: row for row in rows}

    def rows_behind(self, job: str, limit: int) -> list[tuple[str, str | None, str | None]]:
        """Rows in the order of their jobs: the job, and the job and kind of its last record."""
        return self._reader.execute(sql.ROWS_BEHIND, (job, limit)).fetchall()

    def keys_behind(self, key: str, limit: int) -> list[str]:
        return [str(row[0]) for row in self._reader.execute(sql.KEYS_BEHIND, (key, limit))]


_NO_ROOM = (
    "SQLITE_FULL",
    "SQLITE_CANTOPEN",
    "SQLITE_READONLY",
    "SQLITE_IOERR_WRITE",
    "SQLITE_IOERR_SHM",
)
"""Errors after which the transaction is surely out, and nothing is wrong with what is in."""


def _row(worker: Worker) -> str:
    """A machine may be a worker of several engines."""
    return f"{worker.engine}/{worker.id}"
