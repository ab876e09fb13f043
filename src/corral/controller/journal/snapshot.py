"""What is known of a proven journal up to one record: which jobs live there, and where their
records end.

It spares a start the past. It is never the truth: what it names is read from the journal and proven
like everything else, and without it a start only takes longer.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from corral.controller.journal import sql
from corral.controller.journal.record import JournalRecord
from corral.core.job import Head, JobId
from corral.home import sync_folder

NAME = "snapshot"
_DIGEST = hashlib.sha256().digest_size
JOBS_AT_ONCE = 1_000


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


def write(folder: Path, snapshot: JournalSnapshot) -> None:
    """Replaces the one before at once, or leaves it."""
    _write(folder, [_encode(snapshot)])


def write_living(folder: Path, last: JournalRecord, heads: Sequence[Head]) -> None:
    """The same for these living jobs, as of this record, whatever their number: never more than a
    few of them are encoded at a time, and others have their turn in between."""
    _write(folder, _encoded(last, heads))


def _encoded(last: JournalRecord, heads: Sequence[Head]) -> Iterator[bytes]:
    """A JournalSnapshot in pieces."""
    without = _encode(JournalSnapshot(last.seq, last.crc, {}))
    before, empty, behind = without.partition(_encode("living") + _encode({}))
    yield before + empty[:-1] + b"\xdf" + len(heads).to_bytes(4)  # a map of so many
    for first in range(0, len(heads), JOBS_AT_ONCE):
        some = _encode({head.id: head.last_seq for head in heads[first : first + JOBS_AT_ONCE]})
        yield some[1 if some[0] < 0xDE else 3 :]  # without its own length
    yield behind


def _write(folder: Path, pieces: Iterable[bytes]) -> None:
    for leftover in folder.glob(f".{NAME}.*"):
        leftover.unlink(missing_ok=True)
    incoming = folder / f".{NAME}.{secrets.token_hex(4)}"
    fd = os.open(incoming, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            seal = hashlib.sha256()
            for piece in pieces:
                file.write(piece)
                seal.update(piece)
            file.write(seal.digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(incoming, folder / NAME)
    except BaseException:
        with contextlib.suppress(OSError):
            incoming.unlink()
        raise
    sync_folder(folder)


def drop(folder: Path) -> None:
    """The next start reads everything."""
    (folder / NAME).unlink(missing_ok=True)
    sync_folder(folder)
