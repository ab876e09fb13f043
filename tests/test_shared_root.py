"""What a job can do to the shared root while somebody reads from it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from corral.shared_root import NotInRoot, SharedRoot

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and descriptors of POSIX")


def test_a_folder_that_became_a_link_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it was exchanged between the look and the reading: a job may write into the root."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "token").write_text("secret")
    inside = tmp_path / "root" / "d"
    inside.mkdir(parents=True)
    (inside / "token").write_text("harmless")
    root = SharedRoot(str(tmp_path / "root"))
    with root.open("d/token") as file:
        assert file.read() == b"harmless"
    found = root.locate("d/token")
    os.rename(inside, tmp_path / "root" / "e")
    inside.symlink_to(tmp_path / "home")
    monkeypatch.setattr(root, "locate", lambda path: found)
    with pytest.raises(NotInRoot):
        root.open("d/token")
    with pytest.raises(NotInRoot):
        root.digest("d/token")


def test_a_link_inside_the_root_still_leads_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.bin").write_text("a")
    (tmp_path / "latest").symlink_to("models")
    assert SharedRoot(str(tmp_path)).digest("latest/a.bin")[1] == 1


def test_what_is_no_file_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotInRoot):
        SharedRoot(str(tmp_path)).open("pipe")
