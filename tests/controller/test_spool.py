"""Output on disk: whole lines from any offset, and a marked gap past the limit."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.controller.output.spool import OPEN_FILES, Spool
from corral.core.errors import StorageFailed


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


def test_gap_after_gap_is_no_file_after_file(tmp_path: Path) -> None:
    """A worker whose numbers are never those that come next."""
    spool = Spool(tmp_path, 100_000_000)
    for number in range(2, 6_000, 2):
        spool.append("job", 1, b"x", number, 1)
    spool.finish("job", 1)
    assert sum(1 for path in tmp_path.rglob("*") if path.is_file()) <= 150
    lines, skipped = everything(spool)
    assert len(lines) >= 100
    assert skipped + len(lines) == 2 * 2_999, "what is not there is told"


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """This process has as many files open as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first = os.open(os.devnull, os.O_RDONLY)
    taken = [first]
    resource.setrlimit(resource.RLIMIT_NOFILE, (first + 64, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(first))
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def no_folder(spool: Spool) -> Iterator[None]:
    """No file of this job can be made or found."""
    folder, aside = spool.folder / "by-b", spool.folder / "aside"
    there = folder.exists()
    if there:
        folder.rename(aside)
    folder.touch()
    try:
        yield
    finally:
        folder.unlink()
        if there:
            aside.rename(folder)


Trouble = Callable[[Spool], contextlib.AbstractContextManager[None]]
TROUBLES: list[Trouble] = [lambda spool: no_descriptors(), no_folder]


@pytest.mark.parametrize("trouble", TROUBLES, ids=["descriptors", "folder"])
@pytest.mark.parametrize("before", [True, False])
def test_what_cannot_be_kept_is_a_gap_where_it_was(
    tmp_path: Path, trouble: Trouble, before: bool
) -> None:
    spool = Spool(tmp_path, 1_000_000)
    if before:
        spool.append("job", 1, b"first")
        spool.finish("job", 1)  # as if it were put away for others
    with trouble(spool):
        for _ in range(3):
            spool.append("job", 1, b"lost")
    assert everything(spool) == ([b"first"] if before else [], 15), "told before anything follows"
    spool.append("job", 1, b"last")
    kept = [b"first", b"last"] if before else [b"last"]
    assert everything(spool) == (kept, 15)
    spool.close()
    assert everything(Spool(tmp_path, 1_000_000)) == (kept, 15)


@pytest.mark.parametrize("trouble", TROUBLES, ids=["descriptors", "folder"])
def test_a_gap_at_the_end_of_a_stream_outlives_the_trouble_and_a_restart(
    tmp_path: Path, trouble: Trouble
) -> None:
    spool = Spool(tmp_path, 1_000_000)
    spool.append("job", 1, b"first")
    spool.finish("job", 1)
    with trouble(spool):
        spool.append("job", 1, b"lost")
        spool.finish("job", 1)
    assert everything(spool) == ([b"first"], 5)
    spool.finish("another", 1)
    assert everything(spool) == ([b"first"], 5)
    again = Spool(tmp_path, 1_000_000)
    assert everything(again) == ([b"first"], 5), "it is on the disk, without anybody who closed it"
    spool.close()


def test_a_gap_is_not_forgotten_with_a_stream_that_others_push_out(tmp_path: Path) -> None:
    spool, long = Spool(tmp_path, 80_000), b"x" * 10_000
    spool.append("job", 1, long)
    with no_folder(spool):
        spool.append("job", 1, b"lost")  # the first line of the next segment
    for n in range(OPEN_FILES + 1):
        spool.append(f"other{n}", 1, b"a")
    assert everything(spool) == ([long], 5)
    spool.append("job", 1, b"last")
    assert everything(spool) == ([long, b"last"], 5)
    spool.close()


def test_output_that_cannot_be_read_now_says_so(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1_000_000)
    spool.append("job", 1, b"said")
    with no_descriptors():
        with pytest.raises(StorageFailed, match="Too many open files"):
            spool.read("job", 1, 0)
        assert spool.tail("job", 1) == []
    assert everything(spool) == ([b"said"], 0)
    spool.close()


LOOKED_AT: list[str] = []
"""Folders whose entries somebody listed while `listed_folders` watches."""
_watching = False


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if _watching and event in ("os.listdir", "os.scandir"):
        LOOKED_AT.append(str(arguments[0]))


sys.addaudithook(_audit)


@contextlib.contextmanager
def listed_folders() -> Iterator[list[str]]:
    global _watching
    LOOKED_AT.clear()
    _watching = True
    try:
        yield LOOKED_AT
    finally:
        _watching = False


def test_nobody_looks_through_the_output_of_other_jobs(tmp_path: Path) -> None:
    """A folder that holds what 100,000 jobs wrote takes milliseconds to list, for each attempt that
    begins, each reader, each line of a list, and each job whose output goes."""
    spool = Spool(tmp_path, 40_000)
    others = [f"other{n}job" for n in range(40)]
    for other in others:
        spool.append(other, 1, b"kept")
        spool.finish(other, 1)
    with listed_folders() as listed:
        for n in range(1000):
            spool.append("job", 1, b"%06d" % n + b"x" * 94)
        spool.close()
        again = Spool(tmp_path, 40_000)
        again.append("job", 1, b"more")
        again.append("new-job", 1, b"first")
        assert again.read("job", 1, 0).lines
        assert again.tail("job", 1)[-1] == b"more"
        assert again.read("silent-job", 1, 0).lines == []
        again.close()
        again.prune("job", [1], noted=True)
        assert again.read("job", 1, 0).skipped == 101_005
        assert {os.path.basename(path) for path in listed} <= {
            *("job.1.more", "new-job.1.more", "silent-job.1.more"),
            tmp_path.name,  # a start looks whether there are older folders
        }
    assert again.stored().keys() == {*others, "job", "new-job"}


def test_what_is_pruned_leaves_no_more_than_its_length(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 40_000)
    for n in range(1000):
        spool.append("job", 1, b"%06d" % n + b"x" * 94)
    spool.append("job", 3, b"said")
    spool.close()
    kept = spool.stored()["job"]
    assert kept.attempts == {1, 3}
    assert 0 < kept.size < 45_000
    spool.prune("job", kept.attempts, noted=True)
    spool.prune("job", kept.attempts, noted=True)  # a sweep that was killed does it again
    left = spool.stored()["job"]
    assert left.size == 0
    assert left.attempts == {1, 3}
    assert spool.read("job", 1, 1000) == ([], 101_000, 100_000)
    assert spool.read("job", 1, 101_000) == ([], 101_000, 0)
    assert spool.read("job", 3, 0) == ([], 5, 5)
    spool.prune("job", left.attempts, noted=False)
    assert not [path for path in tmp_path.rglob("*") if not path.name.startswith("by-")]


@pytest.mark.parametrize("again", range(10))
def test_what_is_written_while_somebody_reads_is_no_gap(tmp_path: Path, again: int) -> None:
    """Much output is written by another thread, at any moment of a read."""
    spool = Spool(tmp_path, 1 << 30)
    lines = [("job", 1, b"x" * 10_000, 0, 0)] * 5_000
    writer = threading.Thread(target=spool.extend, args=(lines,))
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # the threads meet as often as can be
    try:
        writer.start()
        offset = skipped = read = 0
        while read < len(lines) and not skipped:
            piece = spool.read("job", 1, offset, 4096)
            offset, skipped, read = piece.next_offset, piece.skipped, read + len(piece.lines)
    finally:
        writer.join()
        sys.setswitchinterval(usual)
        spool.close()
    assert (read, skipped) == (len(lines), 0)
