"""`corral get`: where artifacts go, and what they never replace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Corral
from tests.cli.test_running import Terminal
from tests.sdk.orchestrator import Orchestrator, Served


@pytest.fixture
def blobs(corral: Corral, orchestrator: Orchestrator, script: Path) -> dict[str, bytes]:
    """Artifacts of the last job, by name."""
    job = corral("submit", str(script)).out.strip()
    corral("logs", "-f", job)
    return orchestrator.jobs[job].blobs


def test_all_and_one(corral: Corral, blobs: dict[str, bytes], tmp_path: Path) -> None:
    assert "has no artifacts." in corral("get", "last").err
    blobs |= {"plots/loss.png": b"png", "model.bin": b"weights"}
    there = tmp_path / "there"
    done = corral("get", "last", "--to", str(there))
    assert set(done.out.split()) == {str(there / "plots/loss.png"), str(there / "model.bin")}
    assert (there / "plots/loss.png").read_bytes() == b"png"
    one = corral("get", "last", "model.bin", "--to", str(tmp_path / "m"), "--json").json
    assert one == [{"name": "model.bin", "path": str(tmp_path / "m")}]
    assert (tmp_path / "m").read_bytes() == b"weights"
    missing = corral("get", "last", "nope")
    assert (missing.code, "it has plots/loss.png, model.bin." in missing.err) == (1, True)
    again = corral("get", "last", "--to", str(there))
    assert (again.code, again.out) == (0, done.out), "the same bytes are in nobody's way"


def test_no_file_is_replaced_unasked(
    corral: Corral, blobs: dict[str, bytes], tmp_path: Path
) -> None:
    blobs |= {"notes.txt": b"a job's", "new.txt": b"new"}
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    for words in (["--to", str(tmp_path)], ["notes.txt", "--to", str(notes)]):
        refused = corral("get", "last", *words)
        assert refused.code == 1
        assert str(notes) in refused.err
        assert "--force" in refused.err
    assert notes.read_text() == "mine"
    assert not (tmp_path / "new.txt").exists()
    assert corral("get", "last", "--to", str(tmp_path), "--force").code == 0
    assert notes.read_text() == "a job's"


def test_a_home_folder_gets_no_file_that_a_shell_obeys(
    corral: Corral, blobs: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "person"
    home.mkdir()
    monkeypatch.chdir(home)
    blobs |= {".ssh/authorized_keys": b"ssh-ed25519 evil", "x/.git/hooks/pre-commit": b"evil"}
    refused = corral("get", "last")
    assert refused.code == 1
    assert ".ssh/authorized_keys" in refused.err
    assert os.listdir(home) == []
    assert corral("get", "last", "--force").code == 0
    assert (home / ".ssh/authorized_keys").exists()


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "a/../../out"])
def test_no_name_leaves_the_folder(
    corral: Corral, blobs: dict[str, bytes], tmp_path: Path, name: str
) -> None:
    blobs[name] = b"x"
    there = tmp_path / "there"
    assert "would leave" in corral("get", "last", "--to", str(there), "--force").err
    assert not (tmp_path / "out").exists()


def test_no_link_in_the_folder_is_followed(
    corral: Corral, blobs: dict[str, bytes], tmp_path: Path
) -> None:
    there, elsewhere = tmp_path / "there", tmp_path / "there" / "elsewhere"
    elsewhere.mkdir(parents=True)
    (there / "link").symlink_to("elsewhere")
    (there / "file").symlink_to(tmp_path / "target")
    for name in ("link/x", "file"):
        blobs[name] = b"x"
        refused = corral("get", "last", "--to", str(there), "--force")
        assert refused.code == 1
        del blobs[name]
    assert not (tmp_path / "target").exists()
    assert not (elsewhere / "x").exists()


def test_a_person_is_asked(served: Served, blobs: dict[str, bytes], tmp_path: Path) -> None:
    blobs["notes.txt"] = b"a job's"
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    terminal = Terminal(served.home, "get", "last", "--to", str(tmp_path))
    terminal.until("Write them?")
    terminal.type("n\n")
    terminal.until("Nothing was fetched.")
    assert terminal.wait() == 1
    assert notes.read_text() == "mine"
    terminal = Terminal(served.home, "get", "last", "--to", str(tmp_path))
    terminal.until("Write them?")
    terminal.type("y\n")
    assert terminal.wait() == 0
    assert notes.read_text() == "a job's"
