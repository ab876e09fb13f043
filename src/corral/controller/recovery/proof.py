"""Proving a journal: numbers without gaps and checksums that fit, and every row of the history
against the records behind it.

Read in sections, each as of one moment: at a start, when nobody writes, and in the background,
while others write and prune. Of the past only which jobs live is kept meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from corral.controller.history.ended import EndedJob
from corral.controller.journal import pruned
from corral.controller.journal.database import Journal
from corral.controller.journal.record import UNREADABLE, JournalRecord, lost
from corral.core.errors import JobNotFound, JournalDamaged
from corral.core.events import AttemptPlaced, JobRejected, JobRequeued, JobSubmitted
from corral.core.job import Course, JobId
from corral.core.lifecycle import NEXT, NOTES, born

BIRTHS = frozenset(kind.__name__ for state, kind in NEXT if state is None)
ENDINGS = {
    kind.__name__: state
    for (before, kind), state in NEXT.items()
    if before is not None and state.ended
}
"""Kinds of records that end a living job, and how."""
LAST_KINDS = frozenset({*ENDINGS, JobRejected.__name__, *(kind.__name__ for kind in NOTES)})
"""Kinds of the last records of ended jobs."""
ROWS_AT_ONCE = 5000
REPAIRED = "JournalRepaired"
"""The one kind that is no fact about a job: everything before it that is missing is known to be."""
SECTION = 2000
"""Records that are read and proven at once."""


class Proof:
    """`advance` proves the next section behind `seq`, until there is none."""

    def __init__(
        self, journal: Journal, living: Mapping[JobId, int] | None = None, after: int = 0
    ) -> None:
        self._journal = journal
        self.living = dict(living or {})
        """The last record of each job that lives at `seq`."""
        self.seq = after
        self._rows_damaged: JournalDamaged | None = None
        """Told at the end: it says that the records are whole, which has to be seen first."""

    def advance(self, until: int | None = None) -> bool:
        """Proves a section; False where there was nothing left to prove."""
        with self._journal.one_moment():
            records = section(self._journal, self.seq, until)
            if records:
                self._take(records)
        return bool(records)

    def _take(self, records: list[JournalRecord]) -> None:
        living, near = self.living, {record.seq: record for record in records}
        ends: dict[JobId, EndedJob] = {}
        noted: dict[JobId, int] = {}
        for record in records:
            job, kind = record.job, record.kind
            if not job:
                continue
            if kind in BIRTHS:
                if kind == JobRejected.__name__:
                    ends[job] = _ended(record, record, "")
                else:
                    living[job] = record.seq
            elif job not in living:
                noted[job] = record.seq  # a note about an ended job: the end of its chain moved
            elif kind in ENDINGS:
                del living[job]
                ends[job] = self._end(record, near)
            else:
                living[job] = record.seq
        self._check_rows(ends, noted)
        self.seq = records[-1].seq

    def _end(self, last: JournalRecord, near: Mapping[int, JournalRecord]) -> EndedJob:
        """The row that a job must have which this record ended."""
        worker: str | None = None
        record = last
        while record.prev:
            before = record.prev
            try:
                record = near.get(before) or self._journal.record(before)
            except JobNotFound as error:
                raise lost(before, f"record {last.seq} follows it, and it is pruned") from error
            if record.job != last.job or record.seq >= last.seq:
                raise lost(last.seq, f"record {before} is not of the same job")
            if worker is None and record.kind == AttemptPlaced.__name__:
                fact = record.fact()
                worker = fact.worker if isinstance(fact, AttemptPlaced) else ""
            elif worker is None and record.kind == JobRequeued.__name__:
                worker = ""  # it was taken from where it was
        return _ended(record, last, worker or "")

    # --- the history ---

    def _check_rows(self, ends: Mapping[JobId, EndedJob], noted: Mapping[JobId, int]) -> None:
        if self._rows_damaged is not None or not (ends or noted):
            return
        try:
            rows = self._journal.rows([*ends.keys(), *(noted.keys() - ends.keys())])
        except UNREADABLE as error:
            self._rows_damaged = index_damaged(str(error))
            return
        right = all(
            job in rows
            and rows[job].last_seq >= ended.last_seq
            and rows[job]._replace(last_seq=ended.last_seq) == ended
            for job, ended in ends.items()
        ) and all(job in rows and rows[job].last_seq >= seq for job, seq in noted.items())
        if not right:
            self._rows_damaged = _rows_differ()

    def check_rows_met(self) -> None:
        """Raises where an ended job whose records were proven had no row, or another."""
        if self._rows_damaged is not None:
            raise self._rows_damaged


def proven(journal: Journal) -> dict[JobId, int]:
    """Proves the whole journal, while nobody writes. The last record of each job that lives."""
    living = proven_behind(journal, {}, 0)
    check_database(journal)
    for _ in check_rows(journal):
        pass
    return living


def proven_behind(journal: Journal, living: Mapping[JobId, int], after: int) -> dict[JobId, int]:
    """The same from a record on at which these jobs lived: that nothing behind it is missing."""
    proof = Proof(journal, living, after)
    while proof.advance():
        pass
    check_end(journal, proof.seq)
    proof.check_rows_met()
    return proof.living


def check_rows(journal: Journal) -> Iterator[JobId]:
    """That each row leads to a record that its job ended with. Where every ended job has its row,
    as a proof finds out, there are then no others. Stops now and then, at some job."""
    job: JobId = ""
    try:
        while rows := journal.rows_behind(job, ROWS_AT_ONCE):
            if any(one != other or kind not in LAST_KINDS for one, other, kind in rows):
                raise _rows_differ()
            job = rows[-1][0]
            yield job
    except UNREADABLE as error:
        raise index_damaged(str(error)) from error


def _ended(birth: JournalRecord, last: JournalRecord, worker: str) -> EndedJob:
    fact = birth.fact()
    assert isinstance(fact, (JobSubmitted, JobRejected)), "a job is born first"
    head = born(fact, birth.seq)
    if last is birth:
        return EndedJob.of(head, fact)
    state, course = ENDINGS[last.kind], Course(worker=worker)
    head = replace(head, state=state, last_seq=last.seq, course=course)
    return EndedJob.of(head, last.fact())


def _rows_differ() -> JournalDamaged:
    return index_damaged("the history of ended jobs is not what the records say")


# --- sections of records ---


def verified(journal: Journal) -> Iterator[JournalRecord]:
    """Every record in order, each proven; raises JournalDamaged that names the first lost one.

    Records above the mark were never acknowledged: SQLite kept them whole or not at all.
    """
    after, more = 0, True
    while more:
        with journal.one_moment():
            records = section(journal, after)
            if not records:
                check_end(journal, after)
        yield from records
        after, more = records[-1].seq if records else after, bool(records)
    check_database(journal)


def section(journal: Journal, after: int, until: int | None = None) -> list[JournalRecord]:
    """The next records behind `after`, proven: whole, and none missing between them. Without
    their documents, which together could be large."""
    found, broken, failed = list[JournalRecord](), None, None
    try:
        for record in journal.scan(after, until, SECTION):
            found.append(record.without_document())
            if not record.intact():
                broken = record.seq
                break
    except UNREADABLE as error:
        failed = error
    expected = after + 1
    gaps = _gaps(journal, after, found[-1].seq if found else None)
    for record in found:
        if record.seq != expected:
            expected = gaps.skipped(expected)
            if record.kind == REPAIRED and record.seq != broken:
                expected = record.seq
            if record.seq < expected:
                raise pruned.damaged(f"record {record.seq} is in it, and is there")
            if record.seq != expected:
                raise lost(expected, f"{record.seq - expected} missing")
        if record.seq == broken:
            raise lost(broken, "its checksum does not match")
        expected += 1
    if failed is not None:
        raise lost(expected, str(failed)) from failed
    if found and gaps.unused:
        raise _unused(gaps, expected)
    return found


def check_end(journal: Journal, last: int) -> None:
    """Behind the last record nothing is missing that was acknowledged."""
    marked = journal.mark.seq
    expected = check_reached(journal, last, marked or 0, None)
    if marked is None and expected > 1:
        raise JournalDamaged(
            f"The journal's mark {journal.folder / 'mark'} is missing or damaged, so nothing says "
            f"whether records after {expected - 1} are lost. Run `corral repair` to go on."
        )


def check_reached(journal: Journal, last: int, promised: int, until: int | None) -> int:
    """The number behind `last`, which no record follows (none up to `until`). Raises unless all
    that was promised behind it was pruned."""
    gaps = _gaps(journal, last, until)
    expected = gaps.skipped(last + 1)
    if gaps.unused:
        raise _unused(gaps, expected)
    if expected <= promised:
        raise lost(expected, f"{promised - expected + 1} acknowledged records are gone")
    return expected


def check_database(journal: Journal) -> None:
    """What SQLite finds wrong with the pages around the records."""
    if damage := journal.damage():
        raise index_damaged(damage)


def _gaps(journal: Journal, after: int, until: int | None) -> pruned.Gaps:
    try:
        return pruned.Gaps(journal.pruned(after, until), after)
    except UNREADABLE as error:
        raise lost(after + 1, str(error)) from error


def _unused(gaps: pruned.Gaps, expected: int) -> JournalDamaged:
    return lost(expected, f"records from {min(gaps.unused)} are pruned, this one is not")


def index_damaged(reason: str) -> JournalDamaged:
    return JournalDamaged(
        f"The journal's records are whole, but the database around them is damaged ({reason}). "
        "Nothing was changed. Run `corral repair`: it builds a new one, and no job is lost."
    )
