"""`corral backup`: everything a controller knows as one tar file, made while it works.

The journal comes first, as a snapshot of one moment; whatever it names was on disk before it was
written, and retention holds still until the copy is done. At the end stands a manifest with the
digest of everything before it: a file without one, or with another, is no backup.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import sqlite3
import tarfile
import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import structlog

from corral.controller.files.jsonl_file import in_chunks
from corral.controller.history.retention import Retention
from corral.controller.images.presets import NAME as PRESET
from corral.controller.journal import sql
from corral.core.errors import DiskFull
from corral.home import Home

log = structlog.get_logger()

FORMAT = 1
HEADER, MANIFEST = "corral-backup.json", "manifest.json"
JOURNAL = "journal/corral.db"
PIECE = 1 << 20

PLAN = "plan.json"
"""What a restore writes down before it begins, beside what it restores."""
LEARNING = ("ratings.jsonl", "records.jsonl")
"""Not how far the lines are known: with the journal in the file, that is found out again."""
OWN_FILES = frozenset(
    {
        *("lock", "controller.json", "reserve", HEADER, MANIFEST, PLAN, "journal", "blobs"),
        *("spool", "presets", "learning", "log", "worker", "backups", "restore"),
    }
)
"""Names that are no settings or keys of a home: they say something about one process, are folders,
or have a meaning in a backup."""
HOME_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}(?<!\.log)(?<!\.tar)(?<!\.partial)")
MEMBER = re.compile(
    r"journal/corral\.db"
    r"|blobs/[0-9a-f]{2}/[0-9a-f]{64}(\.pruned)?"
    r"|spool/(by-)?[0-9a-z]{1,2}/[0-9a-z]+\.[0-9]+\.([0-9]{16}|pruned|more/[0-9]{16})"
    rf"|presets/{PRESET.pattern}\.json"
    r"|learning/(ratings|records)\.jsonl"
    r"|learning/runs/[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}/(plan|result)\.json"
    rf"|{HOME_FILE.pattern}"
)
"""Everything that may be in a backup. What somebody else put into the home is not."""


class BackupPiece(NamedTuple):
    data: bytes
    done: int
    total: int
    """About how much it will be; what grows meanwhile is copied up to where it was."""


def home_files(home: Path) -> list[Path]:
    """Settings, tokens and keys: files in the home itself."""
    return sorted(
        path
        for path in home.iterdir()
        if path.is_file()
        and not path.is_symlink()
        and path.name not in OWN_FILES
        and HOME_FILE.fullmatch(path.name)
    )


class Backups:
    def __init__(self, home: Home, retention: Retention, version: str) -> None:
        self._home, self._retention, self._version = home, retention, version

    async def stream(self) -> AsyncGenerator[BackupPiece, None]:
        begun = time.monotonic()
        async with self._retention.busy:
            folder = self._home.backups / f".making-{secrets.token_hex(4)}"
            try:
                # First of all: a line about a job that the journal of before has not ended would
                # be told twice after a restore. One that is missing is found in the journal.
                lines = await asyncio.to_thread(self._lines)
                last_seq = await asyncio.to_thread(self._snapshot, folder)
                found = [*await asyncio.to_thread(self._found, folder), *lines]
                total = sum(size for _, _, size in found)
                done = 0
                header = {"format": FORMAT, "corral": self._version, "made_at": time.time()}
                pieces = in_chunks(_tar({**header, "last_seq": last_seq}, found), PIECE)
                while piece := await asyncio.to_thread(next, pieces, b""):
                    done += len(piece)
                    yield BackupPiece(piece, done, max(total, done))
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        seconds = round(time.monotonic() - begun, 2)
        log.info("backup_made", bytes=done, files=len(found), last_seq=last_seq, seconds=seconds)

    def _snapshot(self, folder: Path) -> int:
        """The journal of one moment, without a pause for whoever writes it."""
        self._home.backups.mkdir(mode=0o700, exist_ok=True)
        for leftover in self._home.backups.glob(".making-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        source = self._home.journal / "corral.db"
        size = source.stat().st_size
        if shutil.disk_usage(self._home.path).free < size:
            raise DiskFull(
                f"A copy of the journal needs up to {size:,} bytes in {self._home.backups}, and "
                "the disk has less. Free some space, then make the backup again."
            )
        folder.mkdir(mode=0o700)
        copy = folder / "corral.db"
        with contextlib.closing(sql.open_read_only(source)) as reader:
            reader.execute("VACUUM INTO ?", (str(copy),))
        with contextlib.closing(sqlite3.connect(copy)) as made:
            return int(made.execute(sql.LAST_SEQ).fetchone()[0])

    def _lines(self) -> list[tuple[str, Path, int]]:
        """What was learned, as far as it goes now: these files only grow."""
        folder = self._home.learning
        runs = sorted(folder.glob("runs/*/*.json"))
        named = [(f"learning/{path.relative_to(folder).as_posix()}", path) for path in runs]
        return _sized([*named, *((f"learning/{name}", folder / name) for name in LEARNING)])

    def _found(self, folder: Path) -> list[tuple[str, Path, int]]:
        """What goes into the file: its name there, where it is, how large it is now."""
        home = self._home
        paths: list[tuple[str, Path]] = [(JOURNAL, folder / "corral.db")]
        paths += [(path.name, path) for path in home_files(home.path)]
        for part in (home.blobs, home.spool):
            for inner in sorted(part.iterdir()):
                if inner.is_dir() and inner.name != "incoming":
                    paths += [
                        (path.relative_to(home.path).as_posix(), path) for path in _files(inner)
                    ]
        if home.presets.is_dir():
            paths += [(f"presets/{path.name}", path) for path in sorted(home.presets.iterdir())]
        return _sized(paths)


def _sized(named: Iterable[tuple[str, Path]]) -> list[tuple[str, Path, int]]:
    """Those that have a place in a backup, with the size that they have now."""
    found = []
    for name, path in named:
        if MEMBER.fullmatch(name):
            with contextlib.suppress(FileNotFoundError):
                found.append((name, path, path.stat().st_size))
    return found


def _files(folder: Path) -> Iterator[Path]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from (path / name for name in sorted(os.listdir(path)))
        else:
            yield path


def _tar(header: dict[str, object], found: Iterable[tuple[str, Path, int]]) -> Iterator[bytes]:
    manifest: dict[str, tuple[int, str]] = {}
    yield from _member(HEADER, json.dumps(header).encode(), manifest)
    for name, path, size in found:
        # Output segments come and go; what is open stays readable.
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            at_most = size if name.endswith(".jsonl") else None
            yield from _file(name, file, manifest, at_most)
    yield from _member(MANIFEST, json.dumps(manifest).encode(), {})
    yield bytes(2 * tarfile.BLOCKSIZE)


def _member(name: str, data: bytes, manifest: dict[str, tuple[int, str]]) -> Iterator[bytes]:
    manifest[name] = (len(data), hashlib.sha256(data).hexdigest())
    yield _head(name, len(data)) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def _file(
    name: str, file: BinaryIO, manifest: dict[str, tuple[int, str]], at_most: int | None
) -> Iterator[bytes]:
    """A file as long as it is now, or was; where it is cut short meanwhile, zeros follow."""
    size = os.fstat(file.fileno()).st_size
    size = left = size if at_most is None else min(size, at_most)
    digest = hashlib.sha256()
    yield _head(name, size)
    while left:
        data = file.read(min(left, PIECE)) or bytes(min(left, PIECE))
        digest.update(data)
        left -= len(data)
        yield data
    yield bytes(-size % tarfile.BLOCKSIZE)
    manifest[name] = (size, digest.hexdigest())


def _head(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o600, int(time.time())
    return info.tobuf(tarfile.PAX_FORMAT)
