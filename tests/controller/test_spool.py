"""Output on disk: whole lines from any offset, and a marked gap past the limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.controller.spool import Spool


def everything(spool: Spool, offset: int = 0) -> tuple[list[bytes], int]:
    lines: list[bytes] = []
    skipped = 0
    while True:
        piece = spool.read("job", 1, offset)
        skipped += piece.skipped
        if not piece.lines:
            return lines, skipped
        lines += piece.lines
        assert piece.next_offset > offset
        offset = piece.next_offset


def test_nothing_written_is_nothing_read(tmp_path: Path) -> None:
    assert Spool(tmp_path, 1000).read("job", 1, 0).lines == []


def test_output_of_before_lies_where_it_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "ob").mkdir()
    (tmp_path / "ob" / f"job.1.{0:016d}").write_bytes(b"said\n")
    (tmp_path / "ob" / "mine").touch()
    assert everything(Spool(tmp_path, 1000)) == ([b"said"], 0)
    assert [path.name for path in (tmp_path / "ob").iterdir()] == ["mine"]


@given(st.lists(st.binary(max_size=300).map(lambda b: b.replace(b"\n", b"")), max_size=80))
@settings(max_examples=50, deadline=None)
def test_under_the_limit_all_comes_back_in_order(lines: list[bytes]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(Path(folder), 1_000_000)
        for line in lines:
            spool.append("job", 1, line)
        assert everything(spool) == (lines, 0)
        spool.close()
        assert everything(Spool(Path(folder), 1_000_000)) == (lines, 0)


@pytest.mark.parametrize("limit", [40_000, 64_000])
def test_past_the_limit_head_and_tail_stay(tmp_path: Path, limit: int) -> None:
    spool = Spool(tmp_path, limit)
    written = [b"%06d " % n + b"x" * 93 for n in range(5000)]
    for line in written:
        spool.append("job", 1, line)
    lines, skipped = everything(spool)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert size <= limit + 2 * limit // 8
    assert skipped == 101 * 5000 - sum(len(line) + 1 for line in lines)
    assert lines[0] == written[0]
    assert lines[-1] == written[-1]
    head = next(n for n, line in enumerate(lines) if line != written[n])
    assert lines[head:] == written[-(len(lines) - head) :]
    spool.close()
    assert everything(Spool(tmp_path, limit)) == (lines, skipped)


def test_a_reader_that_was_overtaken_is_told_what_it_missed(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 40_000)
    for n in range(200):
        spool.append("job", 1, b"%06d" % n + b"x" * 94)
    reader = spool.read("job", 1, 0)
    for n in range(200, 5000):
        spool.append("job", 1, b"%06d" % n + b"x" * 94)
    lines, skipped = everything(spool, reader.next_offset)
    assert skipped > 0
    assert lines[-1].startswith(b"004999")
    spool.close()


def test_many_open_streams_do_not_run_out_of_files(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 10_000)
    for n in range(400):
        spool.append(f"job{n}", 1, b"a")
    for n in range(400):
        spool.append(f"job{n}", 1, b"b")
    assert spool.read("job7", 1, 0).lines == [b"a", b"b"]
    spool.close()
