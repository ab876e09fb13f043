"""Numbers without gaps and checksums that fit: how records of the journal are proven.

A section is read and proven as of one moment, so that others may write and prune meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from corral.controller.journal import pruned
from corral.controller.journal.record import UNREADABLE, JournalRecord
from corral.core.errors import JournalDamaged

if TYPE_CHECKING:
    from corral.controller.journal.database import Journal

REPAIRED = "JournalRepaired"
"""The one kind that is no fact about a job: everything before it that is missing is known to be."""
SECTION = 2000
"""Records that are read and proven at once."""


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
    gaps = _gaps(journal, expected, after, found[-1].seq if found else None)
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
    """Where there is no record behind this one, or none up to `until`, all that was promised is
    gone on purpose. The next number."""
    gaps = _gaps(journal, last + 1, last, until)
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


def _gaps(journal: Journal, expected: int, after: int, until: int | None) -> pruned.Gaps:
    try:
        return pruned.Gaps(journal.pruned(after, until), after)
    except UNREADABLE as error:
        raise lost(expected, str(error)) from error


def _unused(gaps: pruned.Gaps, expected: int) -> JournalDamaged:
    return lost(expected, f"records from {min(gaps.unused)} are pruned, this one is not")


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
