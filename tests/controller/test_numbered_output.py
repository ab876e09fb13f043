"""Numbered lines in the spool: each once, and every one that is missing marked where it was."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.controller.output.feed import Feed
from corral.controller.output.pages import Cursor, Seen
from corral.controller.output.spool import OPEN_FILES, Spool
from corral.core.events import AttemptExited, AttemptOutput, AttemptStarted, JobSucceeded
from corral.core.frames import OutputFrame, ProgressFrame, decode_frame, encode_frame, latest
from corral.core.job import Blob
from tests.controller.shell import shell

LIMIT = 1 << 20


class Writer:
    """An attempt that tells pieces of text, in order; they arrive as a test wants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spool = Spool(folder, LIMIT)
        self.killed: list[Spool] = []
        self.frames: list[OutputFrame] = []

    def tells(self, *texts: str) -> None:
        for text in texts:
            n = (self.frames[-1].n if self.frames else 0) + len(text.encode())
            self.frames.append(OutputFrame(1.0, "stdout", text, n=n))

    def arrive(self, *which: int) -> None:
        for index in which:
            frame = self.frames[index]
            self.spool.append("job", 1, encode_frame(frame), frame.n, frame.told)

    def restart(self) -> None:
        """As after kill -9: nothing is closed in order."""
        self.killed.append(self.spool)
        self.spool = Spool(self.folder, LIMIT)

    def read(self) -> list[str | int]:
        """Texts, and how much is missing between them."""
        found: list[str | int] = []
        offset = 0
        while True:
            piece = self.spool.read("job", 1, offset)
            if piece.skipped:
                found.append(piece.skipped)
            frames = [decode_frame(line) for line in piece.lines]
            found += [frame.text for frame in frames if isinstance(frame, OutputFrame)]
            if not piece.lines and not piece.skipped:
                return found
            assert piece.next_offset > offset
            offset = piece.next_offset

    @property
    def files(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())


def test_what_is_sent_again_is_kept_once(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.tells("one", "two", "three")
    writer.arrive(0, 1, 0, 1, 2, 2)
    writer.restart()
    writer.arrive(0, 1, 2)
    assert writer.read() == ["one", "two", "three"]


def test_what_never_came_is_a_gap_of_its_size(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.tells("one", "zwölf", "3", "four")
    writer.arrive(0, 3)
    assert writer.read() == ["one", 7, "four"]
    writer.restart()
    writer.tells("and", "more")
    writer.arrive(3, 5)
    assert writer.read() == ["one", 7, "four", 3, "more"]


def test_a_missing_end_is_marked_once(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.tells("one", "two", "three")
    writer.arrive(0, 1)
    for _ in range(3):
        writer.spool.complete("job", 1, 11)
        writer.spool.finish("job", 1)
        assert writer.read() == ["one", "two", 5]
        writer.restart()


def test_an_end_that_lost_nothing_leaves_no_mark(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.tells("one", "two")
    writer.arrive(0, 1)
    writer.spool.complete("job", 1, 6)
    writer.spool.finish("job", 1)
    assert writer.read() == ["one", "two"]
    assert len(writer.files) == 1


def test_an_attempt_whose_output_is_all_gone(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.spool.complete("job", 1, 500)
    writer.spool.finish("job", 1)
    writer.restart()
    assert writer.read() == [500]


def test_a_line_that_broke_off_takes_no_other_along(tmp_path: Path) -> None:
    """kill -9 in the middle of a long write, or a power cut."""
    writer = Writer(tmp_path)
    writer.tells("one", "two" * 9000, "three")
    writer.arrive(0, 1)
    [file] = writer.files
    os.truncate(file, file.stat().st_size - 5)
    writer.restart()
    assert writer.read() == ["one"]
    writer.arrive(1, 2)
    assert writer.read() == ["one", "two" * 9000, "three"]
    os.truncate(file, 100)
    writer.restart()
    writer.tells("four")
    writer.arrive(3)
    assert writer.read() == ["one", 27_005, "four"]


def test_lines_of_before_there_were_numbers(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.spool.append("job", 1, encode_frame(OutputFrame(1.0, "stdout", "zero")))
    writer.restart()
    writer.tells("told to an older controller", "one", "two")
    writer.arrive(1, 1, 2)
    writer.spool.complete("job", 1, writer.frames[2].n)
    assert writer.read() == ["zero", "one", "two"]


def test_lines_without_numbers_are_kept_as_they_come(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    line = encode_frame(OutputFrame(1.0, "stdout", "a"))
    for _ in range(3):
        writer.spool.append("job", 1, line)
        writer.restart()
    assert writer.read() == ["a", "a", "a"]


def test_what_retention_took_is_not_missing_twice(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.tells("one", "two")
    writer.arrive(0, 1)
    writer.spool.finish("job", 1)
    size = writer.files[0].stat().st_size
    writer.spool.prune("job", [1], noted=True)
    writer.spool.complete("job", 1, 6)
    writer.spool.finish("job", 1)
    assert writer.read() == [size]


def test_streams_that_take_turns_keep_their_numbers(tmp_path: Path) -> None:
    spool = Spool(tmp_path, LIMIT)
    frames = [OutputFrame(1.0, "stdout", "x", n=n) for n in (1, 2, 4)]
    for frame in (*frames, *frames):
        for number in range(OPEN_FILES + 1):
            spool.append(f"job{number}", 1, encode_frame(frame), frame.n, frame.told)
    first = spool.read("job0", 1, 0)
    again = spool.read("job0", 1, first.next_offset)
    assert (len(first.lines), again.skipped, len(again.lines)) == (2, 1, 1)
    spool.close()


def test_a_reader_goes_on_behind_a_number(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.tells(*(f"line {number}" for number in range(10_000)))
    writer.arrive(*range(10_000))
    assert len(writer.files) > 2
    for index in (0, 1, 77, 5_000, 9_998):
        place = writer.spool.place("job", 1, writer.frames[index].n)
        [line, *_] = writer.spool.read("job", 1, place).lines
        assert decode_frame(line) == writer.frames[index + 1]
    place = writer.spool.place("job", 1, writer.frames[-1].n)
    assert writer.spool.read("job", 1, place).lines == []


@pytest.mark.parametrize(
    ("left", "again"), [(0, range(100)), (3000, range(60, 100)), (30, range(97, 100))]
)
async def test_a_reader_whose_lines_are_gone_sees_each_once(
    tmp_path: Path, left: int, again: range
) -> None:
    """A power cut took lines that it had read. Some are sent again, others never: it is told of
    neither, and of all that follows."""
    writer = Writer(tmp_path / "spool")
    writer.tells(*(f"line {number}" for number in range(100)), "more", "last")
    async with shell(tmp_path, seconds=lambda _: 1e6) as corral:
        job = await corral.submit()
        await corral.until(job, AttemptStarted)
        corral.store.recent[job].spoke = True
        feed = corral.feed

        def arrive(*which: int) -> None:
            for index in which:
                frame = writer.frames[index]
                corral.spool.append(job, 1, encode_frame(frame), frame.n, frame.told)
            feed.heard(job)

        async def seen(after: Cursor) -> list[Seen]:
            pages = feed.watch(job, after, until_now=True)
            return [one async for page in pages for one in page if one.fact is None]

        arrive(*range(100))
        before = await seen(Cursor(corral.store.head(job).last_seq, 1))
        assert len(before) == 100
        corral.spool.close()
        [file] = [path for path in corral.spool.folder.rglob(f"{job}*") if path.is_file()]
        os.truncate(file, left)
        feed = Feed(corral.store, corral.spool)
        assert await seen(before[-1].cursor) == []
        arrive(*again, 100)
        (more,) = await seen(before[-1].cursor)
        assert decode_frame(more.frame) == writer.frames[100]
        assert more.cursor > before[-1].cursor
        arrive(101)
        (last,) = await seen(more.cursor)
        assert decode_frame(last.frame) == writer.frames[101]


@pytest.mark.parametrize("written_down", [True, False])
@pytest.mark.parametrize(("came", "seen_before"), [(100, 100), (0, 0), (60, 90)])
async def test_a_gap_at_the_end_is_told_once(
    tmp_path: Path, came: int, seen_before: int, written_down: bool
) -> None:
    """To a reader that comes back just then, too; also where a power cut took what it had read."""
    writer = Writer(tmp_path / "spool")
    writer.tells(*(f"line {number}" for number in range(100)), "what never came")
    told = writer.frames[-1].n
    async with shell(tmp_path, seconds=lambda _: 1e6) as corral:
        job = await corral.submit()
        await corral.until(job, AttemptStarted)
        corral.store.recent[job].spoke = True

        async def seen(after: Cursor) -> list[Seen]:
            pages = Feed(corral.store, corral.spool).watch(job, after, until_now=True)
            return [one async for page in pages for one in page if one.fact is None]

        for frame in writer.frames[:came]:
            corral.spool.append(job, 1, encode_frame(frame), frame.n, frame.told)
        corral.spool.complete(job, 1, told)
        if written_down:
            corral.spool.finish(job, 1)
        known = writer.frames[seen_before - 1].n if seen_before else 0
        (gap,) = await seen(Cursor(corral.store.head(job).last_seq, 1, known))
        assert (gap.skipped, gap.cursor.number) == (told - known, told)
        assert await seen(gap.cursor) == []
        if not written_down:  # it went on after all
            last = OutputFrame(1.0, "stdout", "and more", n=told + 8)
            corral.spool.append(job, 1, encode_frame(last), last.n, last.told)
            (more,) = await seen(gap.cursor)
            assert decode_frame(more.frame) == last
            assert await seen(more.cursor) == []


def test_progress_that_is_sent_again_does_not_go_back() -> None:
    half, most = ProgressFrame(1.0, 0.5, n=1), ProgressFrame(2.0, 0.9, n=2)
    known = latest(latest(half, most), half)
    assert known.fraction == 0.9
    assert latest(known, ProgressFrame(3.0, 0.2, n=3)).fraction == 0.2
    unnumbered = ProgressFrame(1.0, 0.5)
    assert latest(latest(unnumbered, ProgressFrame(2.0, 0.9)), unnumbered).fraction == 0.5


@given(
    st.lists(st.tuples(st.integers(0, 29), st.booleans()), max_size=60),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_all_is_there_or_marked(arrivals: list[tuple[int, bool]], ends: bool) -> None:
    """However messages are doubled and lost, and the controller killed: in order, each once, and
    what is missing adds up."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(Path(folder))
        writer.tells(*(f"{number:04d}." * (number % 4 + 1) for number in range(30)))
        furthest = 0
        for index, restart in arrivals:
            writer.arrive(index)
            furthest = max(furthest, writer.frames[index].n)
            if restart:
                writer.restart()
        if ends:
            furthest = writer.frames[-1].n
            writer.spool.complete("job", 1, furthest)
            writer.spool.finish("job", 1)
        found = writer.read()
        texts = [one for one in found if isinstance(one, str)]
        assert texts == sorted(set(texts))
        assert sum(len(one) if isinstance(one, str) else one for one in found) == furthest
        for spool in (*writer.killed, writer.spool):
            spool.close()


async def test_who_has_read_all_is_told_what_the_end_says_is_missing(tmp_path: Path) -> None:
    """What it printed last never came, and nobody prints any more."""
    async with shell(tmp_path, seconds=lambda _: 1e6) as corral:
        job = await corral.submit()
        await corral.until(job, AttemptStarted)
        watching = corral.feed.watch(job, Cursor())
        frame = OutputFrame(1.0, "stdout", "moo", n=3)
        await corral.intake.take([AttemptOutput(job, 1, "w1", frame)])
        while not (await anext(watching))[-1].frame:
            pass
        rest: list[Seen] = []

        async def follow() -> None:
            async for batch in watching:
                rest.extend(batch)

        following = asyncio.create_task(follow())
        for _ in range(5):
            await asyncio.sleep(0)  # it has read all, and waits
        head = corral.store.head(job)
        result, digest = Blob.of(b"42"), corral.store.digest(head)
        ended = AttemptExited(job, 1, "w1", 2.0, 1.0, digest, result, output=100)
        await corral.intake.take([ended])
        await asyncio.wait_for(following, 10)
        assert [one.skipped for one in rest if one.skipped] == [97]
        assert isinstance(rest[-1].fact, JobSucceeded)
