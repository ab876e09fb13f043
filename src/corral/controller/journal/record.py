"""A record of the journal, and the change that it stands for once it is committed."""

from __future__ import annotations

import sqlite3
import zlib
from typing import Any, NamedTuple

from msgspec import Struct

from corral.core.errors import JournalDamaged
from corral.core.events import Journaled, decode_fact, encode_fact
from corral.core.job import Head

UNREADABLE = (sqlite3.DatabaseError, UnicodeDecodeError)
"""What reading damaged pages raises; the second where not even SQLite's own message is text."""


class JournalRecord(NamedTuple):
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

    @classmethod
    def of(cls, row: tuple[Any, ...] | None) -> JournalRecord | None:
        """A row of the database, proven; None where it is missing or damaged."""
        record = cls._make(row) if row is not None else None
        return record if record is not None and record.intact() else None

    def without_document(self) -> JournalRecord:
        """For whoever keeps many, once it is proven."""
        return self if self.document is None else self._replace(document=None)

    def fact(self) -> Journaled:
        return decode_fact(self.body)


def record_of(fact: Journaled, seq: int, prev: int, document: bytes | None = None) -> JournalRecord:
    kind, body = type(fact).__name__, encode_fact(fact)
    crc = checksum(seq, fact.at, kind, fact.job, prev, body, document)
    return JournalRecord(seq, fact.at, kind, fact.job, prev, body, document, crc)


def checksum(
    seq: int, at: float, kind: str, job: str, prev: int, body: bytes, document: bytes | None
) -> int:
    crc = zlib.crc32(f"{seq}|{float(at)!r}|{kind}|{job}|{prev}|".encode())
    crc = zlib.crc32(body, crc)
    return zlib.crc32(document, crc) if document is not None else crc


class Change(Struct, frozen=True, gc=False):
    """One committed fact and the head it led to."""

    seq: int
    fact: Journaled
    head: Head


def lost(seq: int, reason: str) -> JournalDamaged:
    return JournalDamaged(
        f"The journal is damaged: record {seq} is the first one lost ({reason}). Nothing was "
        "changed. Restore a backup, or run `corral repair` to go on with what is intact.",
        details={"first_lost": seq},
    )
