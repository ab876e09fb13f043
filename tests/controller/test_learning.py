"""One line for each image job that succeeded, whatever the end of the file looked like before."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from corral.controller.files.jsonl_file import JsonlFile
from corral.controller.images import learning
from corral.controller.images.learning import LearningFilters
from corral.core.errors import Conflict, InvalidRequest, JobNotFound, StorageFailed
from corral.core.images import learning as words
from corral.core.images.pipeline import LearningStep, Record, decode_record, digest_of
from corral.core.job import PipelineCall
from tests.controller.paintings import PROMPT, digest, studio


async def test_a_line_says_everything_about_its_job(tmp_path: Path) -> None:
    async with studio(tmp_path) as made:
        record = Record(
            PROMPT, model="m1", seed=7, batch_size=2, learning=LearningStep(True, "p", 3)
        )
        before = time.time()
        job = await made.paint(
            made.job(PipelineCall(record), batch="night", name="n", labels={"pack": "castles"})
        )
        await made.learnings.caught_up()
        (line,) = made.lines()
    assert line["job_id"] == job
    assert (line["batch"], line["name"], line["labels"]) == ("night", "n", {"pack": "castles"})
    assert (line["worker"], line["backend"], line["attempt"]) == ("ranch", "sketch", 1)
    times = (before, line["submitted_at"], line["started_at"], line["ended_at"], time.time())
    assert list(times) == sorted(times)
    assert line["seconds"] == 2.5
    assert line["stages"] == [
        {"stage": "txt2img", "backend": "sketch", "seconds": 1.5, "slot_seconds": 1.51}
    ]
    assert line["seeds"] == [7, 8]
    assert [image["name"] for image in line["images"]] == [f"{job}-000.png", f"{job}-001.png"]
    assert line["images"][1]["pixel_sha256"] == digest("pixels 8")
    assert line["images"][1]["file_sha256"] == digest(f"file {job} 1")
    assert line["learning"] == {"enabled": True, "plan": "p", "step": 3}
    assert line["record_digest"] == digest_of(record)
    assert line["record"]["cfg_scale"] == 7.0, "defaults are spelled out"
    assert decode_record(json.dumps(line["record"]).encode()) == record


async def test_only_images_that_succeeded_are_learned_from(tmp_path: Path) -> None:
    async with studio(tmp_path) as made:
        await made.compute()
        await made.fail()
        job = await made.paint()
        await made.compute()
        await made.learnings.caught_up()
        assert made.learned() == [job]


async def test_lines_are_in_the_order_of_completion(tmp_path: Path) -> None:
    async with studio(tmp_path) as made:
        jobs = [await made.paint() for _ in range(10)]
        await made.learnings.caught_up()
        assert made.learned() == jobs
    async with studio(tmp_path) as made:
        jobs += [await made.paint() for _ in range(3)]
        await made.learnings.caught_up()
        assert made.learned() == jobs


async def test_what_ended_while_nobody_learned_is_caught_up(tmp_path: Path) -> None:
    async with studio(tmp_path, learning=False) as made:
        jobs = [await made.paint() for _ in range(3)]
        await made.compute()
        assert made.learned() == []
    async with studio(tmp_path) as made:
        assert made.learned() == jobs
        jobs.append(await made.paint())
    async with studio(tmp_path, learning=False) as made:
        jobs.append(await made.paint())
    async with studio(tmp_path) as made:
        assert made.learned() == jobs


async def test_a_note_after_the_end_makes_no_second_line(tmp_path: Path) -> None:
    """The history then says that the job's last record is a later one."""
    from corral.core.events import ResultOrphaned

    async with studio(tmp_path) as made:
        job = await made.paint()
        await made.learnings.caught_up()
        await made.store.append([ResultOrphaned(job, time.time(), 0, "succeeded")])
        other = await made.paint()
    async with studio(tmp_path) as made:
        assert made.learned() == [job, other]


async def test_more_than_memory_holds_is_found_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "IN_MEMORY", 3)
    monkeypatch.setattr(learning, "AT_ONCE", 2)
    async with studio(tmp_path) as made:
        jobs = []
        for _ in range(6):
            jobs += [await made.paint() for _ in range(4)]
        await made.learnings.caught_up()
        assert made.learned() == jobs


async def test_what_could_not_be_heard_is_found_in_the_journal(tmp_path: Path) -> None:
    def breaks(change: object) -> None:
        raise MemoryError("a mistake of ours")

    async with studio(tmp_path) as made:
        made.learnings.ended = breaks
        jobs = [await made.paint() for _ in range(3)]
        await made.learnings.caught_up()
        assert made.learned() == jobs


async def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was cut off in the middle is not there twice afterwards, and not there by half."""
    monkeypatch.setattr(learning, "AGAIN_S", 0.01)
    async with studio(tmp_path) as made:
        jobs = [await made.paint()]
        await made.learnings.caught_up()
        tries = full(monkeypatch, times=3)
        jobs += [await made.paint() for _ in range(3)]
        await made.learnings.caught_up()
        assert len(tries) > 3
        assert made.learned() == jobs


def full(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """The disk is full for the first so many times that lines should be safe on it."""
    tries, sync = list[int](), os.fsync

    def refuse(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".jsonl"):
            tries.append(fd)
            if len(tries) <= times:
                raise OSError(errno.ENOSPC, "No space left on device")
        sync(fd)

    monkeypatch.setattr(os, "fsync", refuse)
    return tries


async def test_a_rating_that_is_not_safe_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with studio(tmp_path) as made:
        job = await made.paint()
        await made.learnings.rate(job, 4)
        full(monkeypatch, times=1)
        with pytest.raises(StorageFailed, match="rate again"):
            await made.learnings.rate(job, 1)
        (line,) = await made.exported()
        assert line["rating"]["rating"] == 4


TAILS: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda whole: b"",
    "whole": lambda whole: whole,
    "half a line": lambda whole: whole[:-200],
    "one byte": lambda whole: whole + b"{",
    "no end of line": lambda whole: whole[:-1],
    "half a line behind a whole one": lambda whole: whole + whole[:77],
    "zeros": lambda whole: whole + bytes(700),
    "zeros with an end": lambda whole: whole + bytes(700) + b"\n",
    "no text": lambda whole: whole + b"\xff\xfe\x80\n\xff",
    "json that is no record": lambda whole: whole + b"[1, 2]\n{}\n17",
    "an empty line": lambda whole: whole + b"\n",
    "zeros in the place of the last line": lambda whole: (
        whole[: whole[:-1].rindex(b"\n") + 1] + bytes(900)
    ),
}


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("known", ["known up to the last", "known up to the first", "unknown"])
async def test_every_tail_is_mended(tmp_path: Path, tail: str, known: str) -> None:
    async with studio(tmp_path) as made:
        jobs = [await made.paint()]
    cursor = tmp_path / "learning" / "cursor.json"
    first = cursor.read_bytes()
    async with studio(tmp_path) as made:
        jobs += [await made.paint() for _ in range(3)]
        path = made.learnings.records.path
    if known == "unknown":
        cursor.unlink()
    elif known == "known up to the first":
        cursor.write_bytes(first)
    path.write_bytes(TAILS[tail](path.read_bytes()))
    async with studio(tmp_path) as made:
        assert made.learned() == jobs
        jobs.append(await made.paint())
        await made.learnings.caught_up()
        assert made.learned() == jobs


@pytest.mark.parametrize("pruned", [True, False])
async def test_a_damaged_line_in_the_middle_is_passed_over(tmp_path: Path, pruned: bool) -> None:
    """It is written again where the journal has its job, and costs no other line."""
    async with studio(tmp_path) as made:
        jobs = [await made.paint() for _ in range(3)]
        await made.learnings.caught_up()
        path = made.learnings.records.path
        if pruned:
            await made.store.prune(jobs, 1.0)
    (tmp_path / "learning" / "cursor.json").unlink()
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = bytes(len(lines[1]) - 1) + b"\n"
    path.write_bytes(b"".join(lines))
    async with studio(tmp_path) as made:
        expected = [jobs[0], jobs[2]] if pruned else [jobs[0], jobs[2], jobs[1]]
        assert [line["job_id"] for line in await made.exported()] == expected


@pytest.mark.parametrize(
    "cursor",
    [
        '{"seq": "x", "size": 1}',
        '{"seq": 1.5}',
        '{"seq": null, "size": null}',
        '{"size": -7}',
        '{"seq": 99999999999999999999}',
    ],
)
async def test_a_damaged_cursor_doubles_and_loses_nothing(tmp_path: Path, cursor: str) -> None:
    async with studio(tmp_path) as made:
        jobs = [await made.paint()]
    (tmp_path / "learning" / "cursor.json").write_text(cursor)
    async with studio(tmp_path) as made:
        jobs.append(await made.paint())
        await made.learnings.caught_up()
        assert made.learned() == jobs


async def test_lines_that_are_not_text_or_not_ours_are_not_exported(tmp_path: Path) -> None:
    async with studio(tmp_path) as made:
        jobs = [await made.paint() for _ in range(3)]
    path = made.learnings.records.path
    damaged = path.read_bytes().splitlines(keepends=True)
    damaged[1] = damaged[1].replace(PROMPT.encode(), b"\xff" * len(PROMPT))
    damaged.insert(2, b'{"job_id":"x","ended_at":1,"batch":"","learning":{}}\n')
    path.write_bytes(b"".join(damaged))
    async with studio(tmp_path) as made:
        found = [line["job_id"] for line in await made.exported()]
        assert found == [jobs[0], jobs[2], jobs[1]], "the journal still had the damaged one"


async def test_ratings(tmp_path: Path) -> None:
    async with studio(tmp_path) as made:
        one, two = await made.paint(), await made.paint()
        await made.learnings.rate(one, 2, "too dark", by="ann")
        await made.learnings.rate(one, 4, by="ann")
        lines = await made.exported()
        assert [line["job_id"] for line in lines] == [one, two]
        given = lines[0]["rating"]
        assert (given["rating"], given["note"], given["by"]) == (4, "", "ann")
        assert lines[1]["rating"] is None
        for rating in (0, 6):
            with pytest.raises(InvalidRequest, match="from 1 to 5"):
                await made.learnings.rate(one, rating)
        with pytest.raises(InvalidRequest, match="at most 2,000"):
            await made.learnings.rate(one, 3, "x" * 2001)
        with pytest.raises(Conflict, match="makes no images"):
            await made.learnings.rate(await made.compute(), 3)
        with pytest.raises(Conflict, match="is failed"):
            await made.learnings.rate(await made.fail(), 3)
        with pytest.raises(JobNotFound):
            await made.learnings.rate("0" * 15, 3)
    path = tmp_path / "learning" / "ratings.jsonl"
    path.write_bytes(path.read_bytes() + b'{"job_id":"x","rat')
    async with studio(tmp_path) as made:
        await made.learnings.rate(two, 1)
        assert [line["rating"]["rating"] for line in await made.exported()] == [4, 1]


async def test_lines_and_ratings_outlive_their_jobs(tmp_path: Path) -> None:
    async with studio(tmp_path) as made:
        job = await made.paint()
        await made.learnings.caught_up()
        await made.store.prune([job], 1.0)
        with pytest.raises(JobNotFound):
            made.store.head(job)
        await made.learnings.rate(job, 5)
    async with studio(tmp_path) as made:
        (line,) = await made.exported()
        assert (line["job_id"], line["rating"]["rating"]) == (job, 5)


async def test_lines_are_chosen(tmp_path: Path) -> None:
    async with studio(tmp_path) as made:
        old = await made.paint(made.job(batch="a"))
        run = PipelineCall(Record(PROMPT, learning=LearningStep(True, "cfg", 0)))
        new = await made.paint(made.job(run, batch="b"))
        await made.learnings.caught_up()
        ended = made.lines()[1]["ended_at"]
        for chosen, expected in (
            (LearningFilters(), [old, new]),
            (LearningFilters(since=ended), [new]),
            (LearningFilters(until=ended), [old]),
            (LearningFilters(batch="a"), [old]),
            (LearningFilters(plan="cfg"), [new]),
            (LearningFilters(plan="other"), []),
        ):
            assert [line["job_id"] for line in await made.exported(chosen)] == expected


async def test_a_result_that_says_nothing_is_learned_from_by_its_artifacts(tmp_path: Path) -> None:
    async with studio(tmp_path) as made:
        job = await made.paint(images="none")
        await made.learnings.caught_up()
        (line,) = made.lines()
    assert [image["name"] for image in line["images"]] == [f"{job}-000.png"]
    assert line["images"][0]["file_sha256"] == digest(f"file {job} 0")
    assert line["seeds"] == [7]
    assert "nothing that can be learned" in line["warnings"][0]


async def test_a_result_beside_the_journal_is_read(tmp_path: Path) -> None:
    async with studio(tmp_path) as made:
        await made.paint(warnings=["x" * 30_000] * 50)
        await made.learnings.caught_up()
        (line,) = made.lines()
    assert line["stages"]
    assert line["warnings"] == ["x" * 500] * 20


async def test_a_job_that_is_not_understood_costs_no_other_line(tmp_path: Path) -> None:
    """Nor the controller, which would find it again at each start."""
    strange = b'{"work":{"type":"pipeline","record":{"positive":1,"new":true}}}'
    async with studio(tmp_path) as made:
        before = await made.paint()
        await made.paint(document=strange)
        after = await made.paint()
        await made.learnings.caught_up()
        assert made.learned() == [before, after]
    (tmp_path / "learning" / "cursor.json").unlink()
    async with studio(tmp_path) as made:
        assert made.learned() == [before, after]


def test_a_line_is_never_longer_than_its_limit() -> None:
    record = words.LearningRecord(
        job_id="j", batch="", name="", user="", labels={}, worker="", backend="", attempt=1,
        submitted_at=0, started_at=0, ended_at=0, seconds=0, stages=(), seeds=(), images=(),
        warnings=(), record_digest="d", learning={}, record={"positive": "x"},
    )  # fmt: skip
    assert json.loads(words.line_of(record))["record"] == {"positive": "x"}
    long = replace(record, record={"positive": "x" * words.LONGEST_LINE})
    line = words.line_of(long)
    assert len(line) <= words.LONGEST_LINE
    assert json.loads(line)["record"] is None
    assert json.loads(line)["record_digest"] == "d"


async def test_a_worker_that_says_too_much_stops_nobody_from_learning(tmp_path: Path) -> None:
    endless = [{"name": "\x01" * 512, "pixel_sha256": "\x01" * 512, "seed": 10**300}] * 512
    async with studio(tmp_path) as made:
        jobs = [await made.paint(images=endless), await made.paint(warnings=["x" * 2**23])]
        jobs.append(await made.paint())
        await made.learnings.caught_up()
        assert made.learned() == jobs
        talkative, long, honest = made.lines()
    assert talkative["warnings"] == ["Its result says too much to be kept."]
    assert "says nothing" in long["warnings"][0], "and is not read to its end"
    assert len(long["images"]) == len(honest["images"]) == 1


def test_lines_that_are_not_there_yet(tmp_path: Path) -> None:
    lines = JsonlFile(tmp_path / "x.jsonl")
    assert lines.mend(lambda line: True) == lines.size() == 0
    assert list(lines.read()) == []
    lines.append([b"{}\n", b"[]\n"])
    assert [line for _, line in lines.read()] == [b"{}\n", b"[]\n"]
    assert lines.path.stat().st_mode & 0o777 == 0o600
