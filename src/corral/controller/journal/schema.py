"""The journal's tables: made in one transaction, and whether a file has those that this Corral
knows."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from corral.controller.journal import sql
from corral.core.errors import HomeUnusable


def is_made(path: Path) -> bool:
    """Whether there is a database with our tables; refused where it is of another schema."""
    if not path.exists() or not path.stat().st_size:
        return False
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
    if 0 < version < sql.SCHEMA_VERSION:
        raise HomeUnusable(
            f"{path} was written by a Corral from before the first release (schema {version}, this "
            f"one knows {sql.SCHEMA_VERSION}), and is not read any more. Nothing was changed. Move "
            "the home away to begin anew, or choose another CORRAL_HOME."
        )
    return version > 0


def open_read_only(path: Path) -> sqlite3.Connection:
    """Reads, and leaves every byte of database and log as it found them."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


def make(connection: sqlite3.Connection) -> None:
    """All tables, from nothing; a kill in the middle leaves none."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        # `executescript` would commit before it begins.
        for statement in sql.SCHEMA.split(";\n"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {sql.SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def tables() -> list[tuple[str, ...]]:
    """What `sqlite_master` says in a database that is just made."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as new:
        make(new)
        return new.execute(sql.TABLES).fetchall()
