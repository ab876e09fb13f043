"""What is known of a proven journal up to one record: which jobs live there, and where their
records end.

It spares a start the past. It is never the truth: what it names is read from the journal and proven
like everything else, and without it a start only takes longer. Only what this process has proven
goes into one: a controller that began with a snapshot takes no other before the past was proven in
the background, and none at all once damage was found.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from threading import Thread

import msgspec
import structlog
from msgspec import Struct

from corral.controller.journal import sql
from corral.controller.journal.database import Journal
from corral.controller.journal.record import JournalRecord
from corral.core.errors import CorralError
from corral.core.job import Head, JobId
from corral.home import sync_folder, write_durably

log = structlog.get_logger()

NAME = "snapshot"
_DIGEST = hashlib.sha256().digest_size
JOBS_AT_ONCE = 1_000
EVERY = 50_000
"""Records between two snapshots, and so about how many a start reads; half as many as there are
living jobs where that is more, since each of them is written."""


class SnapshotUnusable(Exception):
    """Why a snapshot is of no use; the start reads the whole journal instead."""


class JournalSnapshot(Struct, frozen=True, forbid_unknown_fields=True):
    seq: int
    crc: int
    """The checksum of that record: by it a snapshot belongs to one journal and to no other."""
    living: dict[JobId, int]
    """The last record of each job that lives then."""
    schema: int = sql.SCHEMA_VERSION
    format: int = 1


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(JournalSnapshot).decode


def read(folder: Path) -> JournalSnapshot | None:
    """The one that is there, intact and of our own kind."""
    try:
        data = (folder / NAME).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SnapshotUnusable(str(error)) from error
    body, digest = data[:-_DIGEST], data[-_DIGEST:]
    if hashlib.sha256(body).digest() != digest:
        raise SnapshotUnusable("its seal does not fit")
    try:
        found = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SnapshotUnusable(str(error)) from error
    if found.schema != sql.SCHEMA_VERSION or found.format != 1:
        raise SnapshotUnusable(f"it is of schema {found.schema}, format {found.format}")
    return found


def encoded(last: JournalRecord, heads: Sequence[Head]) -> Iterator[bytes]:
    """A JournalSnapshot of these living jobs, as of this record, in pieces: whatever their number,
    never more than a few of them are encoded at a time, and others have their turn in between."""
    without = _encode(JournalSnapshot(last.seq, last.crc, {}))
    before, empty, behind = without.partition(_encode("living") + _encode({}))
    yield before + empty[:-1] + b"\xdf" + len(heads).to_bytes(4)  # a map of so many
    for first in range(0, len(heads), JOBS_AT_ONCE):
        some = _encode({head.id: head.last_seq for head in heads[first : first + JOBS_AT_ONCE]})
        yield some[1 if some[0] < 0xDE else 3 :]  # without its own length
    yield behind


def write(folder: Path, pieces: Iterable[bytes]) -> None:
    """Replaces the one before at once, or leaves it."""
    for leftover in folder.glob(f".{NAME}.*"):
        leftover.unlink(missing_ok=True)
    write_durably(folder / NAME, _sealed(pieces))


def _sealed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    seal = hashlib.sha256()
    for piece in pieces:
        seal.update(piece)
        yield piece
    yield seal.digest()


def drop(folder: Path) -> None:
    """The next start reads everything."""
    (folder / NAME).unlink(missing_ok=True)
    sync_folder(folder)


class Snapshots:
    def __init__(self, journal: Journal, every: int) -> None:
        self._journal, self._every = journal, every
        self._seq = 0
        """The record of the last one."""
        self._writing: Thread | None = None
        self.unproven = 0
        """The record of the one that this controller began with, until the past is proven."""
        self.damage = ""
        """What was found wrong with the journal since the start, and what to do about it."""

    def recovered(self, seq: int, heads: Collection[Head], since: int) -> None:
        """A start is done. One that had to read much leaves a snapshot for the next."""
        self.unproven = self._seq = since
        if self.due(seq, len(heads)):
            # Where the last number is that of no record, it was pruned or skipped.
            with contextlib.suppress(CorralError):
                self.take(self._journal.record(seq), heads)

    def due(self, seq: int, living: int) -> bool:
        behind = seq - self._seq
        return (
            behind >= self._every
            and behind * 2 >= living
            and not self.damage
            and not self.unproven
            and (self._writing is None or not self._writing.is_alive())
        )

    def take(self, last: JournalRecord, heads: Iterable[Head]) -> None:
        """Writes one in a thread: what is known of the journal up to this record."""
        self._seq = last.seq
        # Heads never change: the list is as of now, whatever is committed while it is written.
        writing = Thread(target=self._write, args=(last, list(heads)), name="snapshot", daemon=True)
        try:
            writing.start()
        except RuntimeError as error:  # no room for another thread
            log.warning("snapshot_not_written", error=str(error))
        else:
            self._writing = writing

    def _write(self, last: JournalRecord, heads: list[Head]) -> None:
        try:
            write(self._journal.folder, encoded(last, heads))
        except OSError as error:
            log.warning("snapshot_not_written", error=str(error))

    def damaged(self, sentence: str) -> None:
        """From now on there is no snapshot: the next start reads everything, and refuses."""
        self.damage = sentence
        self.close()
        try:
            drop(self._journal.folder)
        except OSError as error:
            log.error("snapshot_not_removed", error=str(error))

    def close(self) -> None:
        """Waits for the one that is being written."""
        if self._writing is not None:
            self._writing.join()
