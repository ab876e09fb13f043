"""Databases of earlier versions: upgraded after a proven copy, or left exactly as they were."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from corral.controller import migrations, sql
from corral.controller.journal import Journal
from corral.controller.store import Store
from corral.controller.world import World
from corral.core.errors import HomeUnusable, JournalDamaged
from tests.controller.version_1 import contents, make_version_1
from tests.crash import tracing
from tests.crash.conftest import complaints


def started(folder: Path) -> Store:
    store = Store(Journal(folder), World())
    store.recover()
    return store


async def test_a_version_1_database(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    make_version_1(folder)
    before = contents(folder)
    store = started(folder)
    assert set(store.world.heads) == {"b"}
    assert store.head("a").state == "succeeded"
    assert store.journal.ended_by_key("k") == "a"
    assert (await store.prune(["a"], 1.0)).records == 4
    await store.close()
    assert contents(folder)[0] == sql.SCHEMA_VERSION
    [copy] = (tmp_path / "backups").iterdir()
    assert copy.name.startswith("schema-1-")
    assert contents(copy) == before, "an older Corral can start from it"
    assert {path.name for path in copy.iterdir()} >= {"corral.db", "mark"}
    started(folder).journal.close()
    assert [path.name for path in (tmp_path / "backups").iterdir()] == [copy.name], "once"


def test_old_and_new_databases_have_the_same_tables(tmp_path: Path) -> None:
    make_version_1(tmp_path / "old")
    Journal(tmp_path / "old").close()
    (tmp_path / "new").mkdir()
    Journal(tmp_path / "new").close()
    found = []
    for name in ("old", "new"):
        with contextlib.closing(sqlite3.connect(tmp_path / name / "corral.db")) as connection:
            found.append(connection.execute(sql.TABLES).fetchall())
    assert found[0] == found[1] == migrations.tables(sql.SCHEMA_VERSION)


def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    make_version_1(folder)
    newer = sql.SCHEMA_VERSION + 1
    with contextlib.closing(sqlite3.connect(folder / "corral.db")) as connection:
        connection.execute(f"PRAGMA user_version = {newer}")
        connection.commit()
    before = contents(folder)
    with pytest.raises(HomeUnusable, match="newer Corral"):
        Journal(folder)
    assert contents(folder) == before


def test_a_damaged_database_is_not_upgraded(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    make_version_1(folder)
    with contextlib.closing(sqlite3.connect(folder / "corral.db")) as connection:
        connection.execute("UPDATE journal SET body = 'moo' WHERE seq = 3")
        connection.commit()
    before = contents(folder)
    with pytest.raises(JournalDamaged, match="record 3"):
        Journal(folder)
    assert contents(folder) == before
    assert not (tmp_path / "backups").exists()


def test_a_failing_step_leaves_the_old_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "journal"
    make_version_1(folder)
    before = contents(folder)
    broken = "CREATE TABLE half (a);\nINSERT INTO history (job) VALUES ('x');\n"
    monkeypatch.setitem(sql.STEPS, sql.SCHEMA_VERSION, broken)
    with pytest.raises((sqlite3.Error, JournalDamaged)):
        Journal(folder)
    found = contents(folder)
    assert found[0] == sql.SCHEMA_VERSION - 1
    assert "half" not in "".join(found[1])
    [copy] = (tmp_path / "backups").iterdir()
    assert contents(copy) == before
    monkeypatch.undo()
    started(folder).journal.close()


def test_no_room_for_the_copy(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    make_version_1(folder)
    before = contents(folder)
    (tmp_path / "backups").write_text("in the way")
    with pytest.raises(HomeUnusable, match="Nothing was changed"):
        Journal(folder)
    assert contents(folder) == before


def test_old_copies_go(tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    for n in range(migrations.KEPT + 2):
        (backups / f"schema-1-2020010{n}-000000").mkdir(parents=True)
        os.utime(backups / f"schema-1-2020010{n}-000000", (n, n))
    make_version_1(tmp_path / "journal")
    Journal(tmp_path / "journal").close()
    left = sorted(path.name for path in backups.iterdir())
    assert len(left) == migrations.KEPT
    assert left[:2] == ["schema-1-20200103-000000", "schema-1-20200104-000000"]


@pytest.mark.crash
def test_killed_at_every_write_of_an_upgrade(tmp_path: Path) -> None:
    if reason := tracing.unavailable():
        pytest.skip(reason)
    command = [sys.executable, "-m", "tests.crash.upkeep", "upgrade", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    assert not any(row["wrong"] for row in rows), complaints(rows)
    assert len(rows) > 50
