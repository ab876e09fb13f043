"""Backup and restore where they say no. What they do: tests/crash/test_backup.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Corral
from tests.sdk.orchestrator import Orchestrator


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_backup_that_is_not_whole_is_not_kept(
    corral: Corral, orchestrator: Orchestrator, here: Path
) -> None:
    answer = corral("backup", "kept.tar")
    assert answer.code == 1
    assert "cannot be restored" in answer.err
    assert not list(here.glob("kept.tar*"))


def test_a_backup_of_nobody(corral: Corral, nobody: None, here: Path) -> None:
    answer = corral("backup")
    assert answer.code == 1
    assert "corral up" in answer.err
    assert not list(here.glob("corral-*"))


def test_a_backup_into_no_folder(corral: Corral, orchestrator: Orchestrator) -> None:
    answer = corral("backup", "none/such/kept.tar")
    assert answer.code == 1
    assert "cannot be written" in answer.err


def test_restoring_no_file(corral: Corral, here: Path) -> None:
    answer = corral("restore", "none.tar")
    assert answer.code == 1
    assert "There is no file none.tar" in answer.err
    assert not (here / "home").exists()


def test_restoring_something_else(corral: Corral, here: Path) -> None:
    (here / "photo.tar").write_bytes(b"moo" * 10_000)
    answer = corral("restore", "photo.tar", "--yes", "--json")
    assert answer.code == 1
    assert json.loads(answer.err)["error"]["code"] == "backup_refused"
    assert not [path for path in (here / "home").rglob("*") if path.is_file()]
