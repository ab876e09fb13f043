"""`corral repair`: goes on knowingly after damage, and says exactly what was lost.

The damaged database is kept. Every record that is intact moves to a new one; jobs whose story is
no longer whole are queued again or, where even the document is gone, named as lost.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from corral.controller.history.ended import EndedJob
from corral.controller.journal import pruned, sql
from corral.controller.journal.database import Journal, Write
from corral.controller.journal.mark import Mark
from corral.controller.journal.record import UNREADABLE, JournalRecord, record_of, sealed
from corral.controller.journal.schema import open_read_only
from corral.controller.journal.wal import mended
from corral.controller.recovery.start import recovered
from corral.controller.recovery.verification import REPAIRED
from corral.core.errors import Conflict, CorralError, HomeUnusable, JournalDamaged
from corral.core.events import (
    AttemptPlaced,
    JobRejected,
    JobRequeued,
    JobSubmitted,
    Journaled,
    decode_fact,
)
from corral.core.job import Head
from corral.core.lifecycle import NOTES, advance, born
from corral.core.worker import Worker
from corral.home import Home, sync_folder

CHUNK = 1000
ATTEMPTS_SKIPPED = 1000
"""Lost records may have placed attempts that still run somewhere: their numbers stay unused."""


REPAIRED_CODE = "repaired"


class RepairReport(Struct, frozen=True):
    lines: list[str]
    changed: bool


def repair(home: Path, *, yes: bool) -> RepairReport:
    """Looks at the journal, and with `yes` replaces it by its intact part."""
    place = Home(home)
    if not place.journal.is_dir() and not place.repaired_journal.is_dir():
        raise HomeUnusable(f"There is no journal in {home}. Nothing to repair.")
    place.take()
    try:
        problem = _problem(place.journal)
        if problem is None:
            return RepairReport(["The journal is whole. Nothing to repair."], changed=False)
        salvage = _Salvage(place)
        lines = [problem, *salvage.lines()]
        if not yes:
            return RepairReport([*lines, "Nothing was changed. Add --yes to go on so."], False)
        kept = salvage.replace_journal()
        lines.append(f"The damaged journal is kept as {kept}. The controller can start again.")
        return RepairReport(lines, changed=True)
    finally:
        place.release()


def _problem(folder: Path) -> str | None:
    try:
        journal = Journal(folder)
    except JournalDamaged as error:
        return error.message
    try:
        recovered(journal)
    except JournalDamaged as error:
        return error.message
    finally:
        journal.close()
    return None


class _Salvage:
    """What can be read of a damaged journal, and what follows for its jobs."""

    def __init__(self, home: Home) -> None:
        self._folder, self._new = home.journal, home.repaired_journal
        folder = home.journal
        mark = Mark(folder / "mark")
        self._marked = mark.seq or 0
        mark.close()
        found: dict[int, JournalRecord] = {}
        gone: set[tuple[int, int]] = set()
        _read(folder / "corral.db", self._marked, found, gone)
        _read_past_damage(folder, self._marked, found, gone)
        self.records = [found[seq] for seq in sorted(found)]
        self.last_seq = max(
            [self._marked, *(record.seq for record in self.records), *(last for _, last in gone)]
        )
        self.heads: dict[str, Head] = {}
        self.lost_jobs: set[str] = set()
        for record in self.records:
            self._fold(record)
        gap_before = min(found, default=1) - 1 if found and _repaired(self.records) else 0
        self.missing = [
            seq for seq in _without(gone, gap_before + 1, self.last_seq) if seq not in found
        ]

    def _fold(self, record: JournalRecord) -> None:
        if not record.job:
            return
        fact = decode_fact(record.body)
        head = self.heads.get(record.job)
        if isinstance(fact, (JobSubmitted, JobRejected)):
            head = born(fact, record.seq)
        elif head is None:
            self.lost_jobs.add(record.job)
            return
        else:
            head = self._advanced(head, fact, record)
        self.heads[record.job] = head

    def _advanced(self, head: Head, fact: Journaled, record: JournalRecord) -> Head:
        try:
            return advance(head, fact, record.seq)
        except Conflict:
            return head  # the step before it is lost

    def lines(self) -> list[str]:
        first = self.missing[0] if self.missing else self.last_seq + 1
        living = [head for head in self.heads.values() if not head.state.ended]
        lines = [
            f"{len(self.records):,} records are intact, {len(self.missing):,} are lost "
            f"(the first is {first}).",
            f"{len(living):,} unfinished jobs go on; those in flight are queued again.",
        ]
        if self.lost_jobs:
            some = ", ".join(sorted(self.lost_jobs)[:20])
            lines.append(f"Lost with their documents: {some}. Submit them again.")
        if self.missing:
            lines.append(
                "Jobs submitted or ended in the lost records are not known any more: those "
                "submitted there must be submitted again, those that ended there run again."
            )
        return lines

    def replace_journal(self) -> Path:
        """Writes the intact part into a new journal and puts it in the old one's place. Killed
        between the two renames, the next `Home.take` does the second."""
        new = self._new
        if new.exists():
            for leftover in new.iterdir():
                leftover.unlink()
        new.mkdir(exist_ok=True)
        journal = Journal(new)
        try:
            self._fill(journal)
        finally:
            journal.close()
        stamp = time.strftime("%Y%m%d-%H%M%S")
        kept = self._folder.with_name(f"{self._folder.name}.damaged-{stamp}")
        self._folder.rename(kept)
        new.rename(self._folder)
        sync_folder(self._folder.parent)
        return kept

    def _fill(self, journal: Journal) -> None:
        """Kept records keep their documents and get new numbers above everything promised."""
        seq, now = self.last_seq + 1, time.time()
        marker = sealed(seq, now, REPAIRED, "", 0, b"{}", None)
        records: list[JournalRecord] = [marker]
        last: dict[str, int] = {}
        heads: dict[str, Head] = {}
        ends: dict[str, EndedJob] = {}

        def add(fact: Journaled, document: bytes | None) -> None:
            nonlocal seq
            head = heads.get(fact.job)
            if isinstance(fact, (JobSubmitted, JobRejected)):
                head = born(fact, seq + 1)
            elif head is None:
                return
            else:
                try:
                    head = advance(head, fact, seq + 1)
                except Conflict:
                    return
            seq += 1
            records.append(record_of(fact, seq, last.get(fact.job, 0), document))
            last[fact.job] = seq
            heads[fact.job] = head
            if head.state.ended:
                noted = type(fact) in NOTES
                ends[head.id] = (
                    ends[head.id]._replace(last_seq=seq) if noted else EndedJob.of(head, fact)
                )

        for record in self.records:
            if record.job:
                add(decode_fact(record.body), record.document)
        for job in list(heads):
            for fact in fence(heads[job], now, REPAIRED_CODE):
                add(fact, None)
        for start in range(0, len(records), CHUNK):
            journal.write(Write(records[start : start + CHUNK]))
        journal.write(Write([], ends=list(ends.values()), workers=_workers(self._folder)))
        journal.sync_mark()


def fence(head: Head, now: float, code: str) -> Iterator[Journaled]:
    """What puts an unfinished job back into the queue, above every attempt that nobody knows of."""
    if head.state.ended:
        return
    if head.state.held:
        yield _requeued(head.id, head.attempt, now, code)
    number = head.attempt + ATTEMPTS_SKIPPED
    yield AttemptPlaced(job=head.id, at=now, attempt=number, worker="", why=code)
    yield _requeued(head.id, number, now, code)


def _requeued(job: str, attempt: int, now: float, code: str) -> JobRequeued:
    return JobRequeued(
        job=job,
        at=now,
        attempt=attempt,
        code=code,
        message=f"The journal was {code}; what became of this attempt is not known.",
        fault="none",
    )


def fenced(journal: Journal, promised: int) -> None:
    """A restored journal goes on above all that was promised since its backup was made, and its
    unfinished jobs above all attempts that may have been placed since."""
    seq, heads, _ = recovered(journal)
    if promised > seq:
        journal.skip_to(promised)
        seq = promised
    now, records = time.time(), list[JournalRecord]()
    for head in heads.values():
        prev = head.last_seq
        for fact in fence(head, now, "restored"):
            seq += 1
            records.append(record_of(fact, seq, prev))
            prev = seq
    for start in range(0, len(records), CHUNK):
        journal.write(Write(records[start : start + CHUNK]))
    journal.sync_mark()


def _repaired(records: list[JournalRecord]) -> bool:
    return bool(records) and records[0].kind == REPAIRED


def _without(gone: set[tuple[int, int]], first: int, last: int) -> Iterator[int]:
    """The numbers from `first` to `last` that were not pruned on purpose."""
    for start, end in sorted(gone):
        yield from range(first, min(start, last + 1))
        first = max(first, end + 1)
    yield from range(first, last + 1)


def _read_past_damage(
    folder: Path, marked: int, found: dict[int, JournalRecord], gone: set[tuple[int, int]]
) -> None:
    """What SQLite dropped behind a damaged frame of its log, read from a copy."""
    database, log = folder / "corral.db", folder / "corral.db-wal"
    if not (database.exists() and log.exists() and (whole := mended(log.read_bytes()))):
        return
    with tempfile.TemporaryDirectory(prefix="repair-", dir=folder.parent) as copies:
        copy = Path(copies) / database.name
        shutil.copyfile(database, copy)
        copy.with_name(log.name).write_bytes(whole)
        _read(copy, marked, found, gone)


def _read(
    path: Path, marked: int, found: dict[int, JournalRecord], gone: set[tuple[int, int]]
) -> None:
    """Every intact record: from both ends as far as a scan gets, then one by one in between. And
    which numbers are said, under an intact checksum, to be gone on purpose."""
    try:
        connection = open_read_only(path)
    except UNREADABLE:
        return
    with contextlib.closing(connection):
        for scan in (sql.SCAN, sql.SCAN_BACKWARDS):
            with contextlib.suppress(*UNREADABLE):
                for row in connection.execute(scan):
                    _keep(row, found)
        with contextlib.suppress(*UNREADABLE):
            for row in connection.execute(sql.PRUNED_INTERVALS):
                if (interval := pruned.Interval._make(row)).intact():
                    gone.add(interval[:2])
        first, last = min(found, default=1), max([marked, *found])
        for seq in _without(gone, first, last + CHUNK):
            if seq not in found:
                with contextlib.suppress(*UNREADABLE):
                    _keep(connection.execute(sql.RECORD, (seq,)).fetchone(), found)


def _keep(row: tuple[Any, ...] | None, found: dict[int, JournalRecord]) -> None:
    if row is not None and (record := JournalRecord._make(row)).intact():
        found[record.seq] = record


def _workers(folder: Path) -> list[Worker]:
    try:
        journal = Journal(folder)
        try:
            return journal.workers()
        finally:
            journal.close()
    except (CorralError, *UNREADABLE):
        return []
