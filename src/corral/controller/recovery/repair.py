"""`corral repair`: goes on knowingly after damage, and says exactly what was lost.

The damaged database is kept. Every record that is intact moves to a new one; jobs whose story is
no longer whole are queued again or, where even the document is gone, named as lost.
"""

from __future__ import annotations

import contextlib
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec import Struct

from corral.controller.history.ended import EndedJob
from corral.controller.journal import pruned, sql
from corral.controller.journal.database import Journal
from corral.controller.journal.mark import Mark
from corral.controller.journal.record import UNREADABLE, JournalRecord, checksum, record_of
from corral.controller.recovery.proof import REPAIRED
from corral.controller.recovery.start import fold, recovered
from corral.core.errors import Conflict, CorralError, HomeUnusable, JournalDamaged
from corral.core.events import AttemptPlaced, JobRequeued, Journaled
from corral.core.job import Head
from corral.core.lifecycle import NOTES
from corral.core.worker import Worker
from corral.home import Home, sync_folder

CHUNK = 1000
ATTEMPTS_SKIPPED = 1000
"""Lost records may have placed attempts that still run somewhere: their numbers stay unused."""
REPAIRED_CODE = "repaired"
_HEADER, _FRAME = 32, 24
_MAGIC = 0x377F0682
_PAGE_SIZES = frozenset(512 << n for n in range(8))


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
        with contextlib.closing(Journal(folder)) as journal:
            recovered(journal)
    except JournalDamaged as error:
        return error.message
    return None


class _Salvage:
    """What can be read of a damaged journal, and what follows for its jobs."""

    def __init__(self, home: Home) -> None:
        self._folder, self._new = home.journal, home.repaired_journal
        with contextlib.closing(Mark(self._folder / "mark")) as mark:
            self._marked = mark.seq or 0
        found = self._found = dict[int, JournalRecord]()
        gone = self._gone = set[tuple[int, int]]()
        """Numbers that are said, under an intact checksum, to be gone on purpose."""
        self._read(self._folder / "corral.db")
        self._read_past_damage()
        self.records = [found[seq] for seq in sorted(found)]
        self.last_seq = max(
            [self._marked, *(record.seq for record in self.records), *(last for _, last in gone)]
        )
        self.heads: dict[str, Head] = {}
        self.lost_jobs: set[str] = set()
        for record in self.records:
            if record.job:
                head = _after(self.heads, record.fact(), record.seq)
                if head is not None:
                    self.heads[record.job] = head
                elif record.job not in self.heads:
                    self.lost_jobs.add(record.job)
        first = 1
        if self.records and self.records[0].kind == REPAIRED:
            first = self.records[0].seq
        self.missing = [seq for seq in _without(gone, first, self.last_seq) if seq not in found]

    def _read(self, path: Path) -> None:
        """Every intact record: from both ends as far as a scan gets, then one by one in between."""
        try:
            connection = sql.open_read_only(path)
        except UNREADABLE:
            return
        with contextlib.closing(connection):
            for scan in (sql.SCAN, sql.SCAN_BACKWARDS):
                with contextlib.suppress(*UNREADABLE):
                    for row in connection.execute(scan):
                        self._keep(row)
            with contextlib.suppress(*UNREADABLE):
                for row in connection.execute(sql.PRUNED_INTERVALS):
                    if (interval := pruned.Interval._make(row)).intact():
                        self._gone.add(interval[:2])
            first, last = min(self._found, default=1), max([self._marked, *self._found])
            for seq in _without(self._gone, first, last + CHUNK):
                if seq not in self._found:
                    with contextlib.suppress(*UNREADABLE):
                        self._keep(connection.execute(sql.RECORD, (seq,)).fetchone())

    def _keep(self, row: tuple[Any, ...] | None) -> None:
        if record := JournalRecord.of(row):
            self._found[record.seq] = record

    def _read_past_damage(self) -> None:
        """What SQLite dropped behind a damaged frame of its log, read from a copy."""
        database, log = self._folder / "corral.db", self._folder / "corral.db-wal"
        if not (database.exists() and log.exists() and (whole := _mended(log.read_bytes()))):
            return
        with tempfile.TemporaryDirectory(prefix="repair-", dir=self._folder.parent) as copies:
            copy = Path(copies) / database.name
            shutil.copyfile(database, copy)
            copy.with_name(log.name).write_bytes(whole)
            self._read(copy)

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
        with contextlib.closing(Journal(new)) as journal:
            self._fill(journal)
        stamp = time.strftime("%Y%m%d-%H%M%S")
        kept = self._folder.with_name(f"{self._folder.name}.damaged-{stamp}")
        self._folder.rename(kept)
        new.rename(self._folder)
        sync_folder(self._folder.parent)
        return kept

    def _fill(self, journal: Journal) -> None:
        """Kept records keep their documents and get new numbers above everything promised."""
        seq, now = self.last_seq + 1, time.time()
        marker = (seq, now, REPAIRED, "", 0, b"{}", None)
        records = [JournalRecord(*marker, checksum(*marker))]
        last: dict[str, int] = {}
        heads: dict[str, Head] = {}
        ends: dict[str, EndedJob] = {}

        def add(fact: Journaled, document: bytes | None) -> None:
            nonlocal seq
            head = _after(heads, fact, seq + 1)
            if head is None:
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
                add(record.fact(), record.document)
        for job in list(heads):
            for fact in fence(heads[job], now, REPAIRED_CODE):
                add(fact, None)
        _write(journal, records)
        journal.write([], ends=list(ends.values()), workers=_workers(self._folder))


def _after(heads: dict[str, Head], fact: Journaled, seq: int) -> Head | None:
    """A job's head with this fact; None where the step before it is lost."""
    try:
        return fold(heads.get(fact.job), fact, seq)
    except Conflict:
        return None


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
    _write(journal, records)


def _write(journal: Journal, records: list[JournalRecord]) -> None:
    for start in range(0, len(records), CHUNK):
        journal.write(records[start : start + CHUNK])
    journal.sync_mark()


def _without(gone: set[tuple[int, int]], first: int, last: int) -> Iterator[int]:
    """The numbers from `first` to `last` that were not pruned on purpose."""
    for start, end in sorted(gone):
        yield from range(first, min(start, last + 1))
        first = max(first, end + 1)
    yield from range(first, last + 1)


def _mended(log: bytes) -> bytes:
    """SQLite's write-ahead log with a checksum on every frame of its present generation, damaged or
    not; empty where it has no such frame.

    SQLite stops at the first frame whose checksum is wrong and drops all that was committed behind
    it. Records have checksums of their own, so a repair may look further: here the log's chain of
    checksums is made whole again around whatever its pages hold."""
    if len(log) < _HEADER + _FRAME:
        return b""
    magic, version, page_size, sequence = struct.unpack_from(">4I", log)
    if page_size not in _PAGE_SIZES:
        page_size = 4096  # what every journal of ours has
    salts = log[_HEADER + 8 : _HEADER + 16]
    order = ">" if magic & 1 else "<"
    head = struct.pack(">4I", _MAGIC | magic & 1, version, page_size, sequence) + salts
    sums = _checksum(order, head, (0, 0))
    whole = [head, struct.pack(">2I", *sums)]
    step = _FRAME + page_size
    starts = range(_HEADER, len(log) - step + 1, step)
    for number, start in enumerate(starts):
        # One foreign frame is a flipped bit; two are the rest of an older generation.
        near = islice(starts, number, number + 2)
        if all(log[other + 8 : other + 16] != salts for other in near):
            break
        meaning, page = log[start : start + 8], log[start + _FRAME : start + step]
        sums = _checksum(order, page, _checksum(order, meaning, sums))
        whole += [meaning, salts, struct.pack(">2I", *sums), page]
    return b"".join(whole) if len(whole) > 2 else b""


def _checksum(order: str, data: bytes, sums: tuple[int, int]) -> tuple[int, int]:
    """SQLite's: two running sums over pairs of 32-bit words."""
    first, second = sums
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for even, odd in zip(words, words, strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


def _workers(folder: Path) -> list[Worker]:
    try:
        with contextlib.closing(Journal(folder)) as journal:
            return journal.workers()
    except (CorralError, *UNREADABLE):
        return []
