"""How the journal's database came to its present tables: ordered steps, each one transaction.

A new database goes through all steps too, so that both have the very same tables. Before an old
one is changed it is proven, copied into `backups` in the home, and the copy proven: a step that
fails leaves the old database, and so does a kill in the middle of one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from corral.controller import sql
from corral.controller.refill import refill_history
from corral.core.errors import HomeUnusable
from corral.home import sync_folder

log = structlog.get_logger()

KEPT = 3
"""Copies from before an upgrade; older ones are removed by the next upgrade."""
NAME = "schema-"
FILLS: dict[int, Callable[[sqlite3.Connection], None]] = {3: refill_history}
"""What SQL alone cannot say about a step, done to an old database inside its transaction."""


def current_version(path: Path) -> int:
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


def open_read_only(path: Path) -> sqlite3.Connection:
    """Reads, and leaves every byte of database and log as it found them."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


def make(connection: sqlite3.Connection, version: int = sql.SCHEMA_VERSION) -> None:
    """All tables of a version, from nothing, in one transaction."""
    with _transaction(connection):
        _run(connection, sql.SCHEMA)
        for step in range(2, version + 1):
            _run(connection, sql.STEPS[step])
        connection.execute(f"PRAGMA user_version = {version}")


def tables(version: int) -> list[tuple[str, ...]]:
    """What `sqlite_master` says in a database of this version."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as new:
        make(new, version)
        return new.execute(sql.TABLES).fetchall()


def upgrade(
    connection: sqlite3.Connection, folder: Path, version: int, prove: Callable[[Path], None]
) -> None:
    """Brings a proven database to the present version. `prove` raises where a copy is not whole."""
    kept = _backup(connection, folder, version, prove)
    for step in range(version + 1, sql.SCHEMA_VERSION + 1):
        with _transaction(connection):
            _run(connection, sql.STEPS[step])
            if fill := FILLS.get(step):
                fill(connection)
            connection.execute(f"PRAGMA user_version = {step}")
        log.info("journal_upgraded", schema=step, backup=str(kept))
    _forget_old(kept)


def _backup(
    connection: sqlite3.Connection, folder: Path, version: int, prove: Callable[[Path], None]
) -> Path:
    """A whole journal folder of the old version: a Corral that knows it can start from it."""
    backups = folder.parent / "backups"
    kept = dated(backups, f"{NAME}{version}-")
    copying = backups / f".{kept.name}-{os.getpid()}"
    pages, size = (int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in _SIZE)
    try:
        backups.mkdir(mode=0o700, exist_ok=True)
        for leftover in backups.glob(f".{NAME}*"):
            shutil.rmtree(leftover)
        copying.mkdir(mode=0o700)
        if shutil.disk_usage(backups).free < pages * size + _ROOM:
            raise OSError(f"{pages * size:,} bytes are needed and the disk has less")
        with contextlib.closing(sqlite3.connect(copying / "corral.db")) as copy:
            connection.backup(copy, pages=4096)
        shutil.copyfile(folder / "mark", copying / "mark")
        for path in copying.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        prove(copying)
        copying.rename(kept)
        sync_folder(backups)
    except OSError as error:
        raise HomeUnusable(
            f"The journal has to be copied into {backups} before it is upgraded, and that failed "
            f"({error}). Nothing was changed. Make room there, then start again."
        ) from error
    finally:
        shutil.rmtree(copying, ignore_errors=True)
    return kept


def dated(folder: Path, prefix: str) -> Path:
    """A name in the folder that says when, and that nothing there has."""
    stamp = f"{prefix}{time.strftime('%Y%m%d-%H%M%S')}"
    names = (stamp, *(f"{stamp}-{n}" for n in range(2, 1000)))
    return next(folder / name for name in names if not (folder / name).exists())


def _forget_old(kept: Path) -> None:
    copies = sorted(kept.parent.glob(f"{NAME}*"), key=lambda path: path.stat().st_mtime)
    for old in copies[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


_SIZE = ("page_count", "page_size")
_ROOM = 1 << 20


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _run(connection: sqlite3.Connection, script: str) -> None:
    """Statement by statement: `executescript` would commit before it begins."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""
