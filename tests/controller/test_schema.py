"""Databases of another schema are refused with a sentence, and left exactly as they were."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from corral.controller.journal import sql
from corral.controller.journal.database import Journal
from corral.controller.recovery.repair import repair
from corral.core.errors import HomeUnusable
from corral.doctor.place import Place
from tests.controller.shell import shell

OTHERS = [
    (sql.SCHEMA_VERSION + 1, "newer Corral.*Install that version"),
    (sql.SCHEMA_VERSION - 1, "before the first release.*Nothing was changed. Move the home away"),
    (1, "before the first release"),
]


async def made_as(version: int, home: Path) -> bytes:
    """A home whose database says that it is of this version; its bytes."""
    async with shell(home) as corral:
        await corral.submit()
    with contextlib.closing(sqlite3.connect(home / "journal" / "corral.db")) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
        connection.commit()
    return database(home)


def database(home: Path) -> bytes:
    return (home / "journal" / "corral.db").read_bytes()


@pytest.mark.parametrize(("version", "sentence"), OTHERS)
async def test_another_schema_is_refused(tmp_path: Path, version: int, sentence: str) -> None:
    before = await made_as(version, tmp_path)
    with pytest.raises(HomeUnusable, match=sentence):
        Journal(tmp_path / "journal")
    assert database(tmp_path) == before


async def test_nor_is_it_repaired(tmp_path: Path) -> None:
    before = await made_as(1, tmp_path)
    with pytest.raises(HomeUnusable, match="before the first release"):
        repair(tmp_path, yes=True)
    assert database(tmp_path) == before


async def test_doctor_names_it(tmp_path: Path) -> None:
    await made_as(1, tmp_path)
    [found] = Place(tmp_path).journal()
    assert "before the first release" in found.said
    assert "repair" not in found.next, "it would refuse too"


def test_a_new_database_has_its_tables(tmp_path: Path) -> None:
    with contextlib.closing(Journal(tmp_path)) as journal:
        assert journal.has_its_tables()
    names = {name for _, name, _, _ in sql.tables()}
    assert names >= {"journal", "history", "pruned", "workers"}
