"""What goes after its time or for its size, what stays, and what whoever asks for it is told."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.controller.files.blobs import Blobs
from corral.controller.history.retention import (
    DAY_S,
    FETCH_S,
    KeptBytes,
    Retention,
    due,
)
from corral.controller.output.feed import Feed
from corral.controller.output.pages import Cursor
from corral.core.errors import (
    ArtifactPruned,
    AssetNotFound,
    BlobNotFound,
    JobNotFound,
    JournalDamaged,
)
from corral.core.frames import OutputFrame, encode_frame
from corral.core.job import Blob, FunctionCall, Input, Needs, decode_document
from corral.settings import RetentionSettings
from tests.controller.shell import Shell, function_job, shell
from tests.controller.test_pruning import damage

FOREVER = 1e12
KEEP = RetentionSettings(
    history_s=FOREVER,
    history_jobs=1_000_000,
    artifacts_s=FOREVER,
    artifacts_gb=1_000.0,
    output_s=FOREVER,
    output_gb=1_000.0,
)


class Ranch:
    def __init__(self, life: Shell, home: Path) -> None:
        self.life = life
        self.blobs = Blobs(home / "blobs")
        self.now = time.time()

    async def tidy(self, **limits: object) -> None:
        """One turn, by a controller that was started just now: it counts on no blob."""
        blobs = Blobs(self.blobs.folder)
        kept = replace(KEEP, **limits)
        stores = (self.life.store, blobs, self.life.spool)
        await Retention(*stores, kept, clock=lambda: self.now).turn()

    async def ended(self, text: str) -> str:
        """A job with a large argument and some output, ended."""
        argument = await self.blobs.put_bytes(text.encode() * 10_000)
        call = FunctionCall(function=Blob.of(b"f"), arguments=argument)
        job = (await self.life.queue.submit([replace(function_job(), work=call, key=text)]))[0].job
        head = await self.life.until_ended(job)
        self.life.spool.append(job, head.attempt, encode_frame(OutputFrame(1.0, "stdout", text)))
        self.life.spool.finish(job, head.attempt)
        self.life.store.recent.clear()  # as after a start: who asks reads from the disk
        return job

    def later(self, seconds: float) -> None:
        self.now += seconds

    def argument(self, text: str) -> Path:
        return self.blobs.path(Blob.of(text.encode() * 10_000, inline=False).sha256)

    async def skipped(self, job: str) -> int:
        feed = Feed(self.life.store, self.life.spool)  # one that has not just read it
        pieces = [seen async for seen in feed.watch(job, Cursor())]
        return sum(one.skipped for piece in pieces for one in piece)


@asynccontextmanager
async def ranch(home: Path) -> AsyncIterator[Ranch]:
    async with shell(home) as life:
        yield Ranch(life, home)


async def test_history_goes_with_everything_that_was_its_own(tmp_path: Path) -> None:
    async with ranch(tmp_path) as place:
        old = await place.ended("old")
        waiting = await place.life.submit(text="waiting", needs=Needs(labels=("none such",)))
        place.later(10 * DAY_S)
        await place.tidy(history_s=11 * DAY_S)
        assert place.life.store.head(old).state == "succeeded"
        await place.tidy(history_s=9 * DAY_S)
        with pytest.raises(JobNotFound):
            place.life.store.head(old)
        assert not place.argument("old").exists()
        assert not list(place.life.spool.folder.glob(f"*/{old}*"))
        assert place.life.store.head(waiting).state == "queued"
        again = await place.ended("old")
        assert again != old, "its key is free again"


async def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    async with ranch(tmp_path) as place:
        job = await place.ended("moo")
        strange = [
            place.argument("moo").with_name("notes.txt"),
            next(place.life.spool.folder.glob(f"*/{job}*")).with_name(f"{job}.bak"),
            place.life.spool.folder / "README",
        ]
        for path in strange:
            path.write_text("mine")
        place.later(100 * DAY_S)
        await place.tidy(history_s=DAY_S)
        assert not place.argument("moo").exists()
        assert [path.read_text() for path in strange] == ["mine"] * 3


async def test_too_many_jobs_keep_a_day(tmp_path: Path) -> None:
    async with ranch(tmp_path) as place:
        jobs = [await place.ended(f"n{n}") for n in range(5)]
        await place.tidy(history_jobs=2)
        assert all(place.life.store.journal.ended(job) for job in jobs)
        place.later(DAY_S + 60)
        await place.tidy(history_jobs=2)
        assert [bool(place.life.store.journal.ended(job)) for job in jobs] == [False] * 3 + [
            True
        ] * 2


async def test_bytes_of_ended_jobs_go_by_age(tmp_path: Path) -> None:
    async with ranch(tmp_path) as place:
        job = await place.ended("moo")
        await place.tidy(artifacts_s=100.0, output_s=100.0)
        assert place.argument("moo").exists()
        assert not await place.skipped(job)
        place.later(200)
        await place.tidy(artifacts_s=100.0, output_s=100.0)
        assert not place.argument("moo").exists()
        with pytest.raises(ArtifactPruned, match="retention"):
            place.blobs.open_path(place.argument("moo").name)
        with pytest.raises(ArtifactPruned):
            await place.life.queue.retry(job)
        assert await place.skipped(job) > 0, "readers are told how much is missing"
        await place.tidy(artifacts_s=100.0, output_s=100.0)
        assert await place.skipped(job) > 0, "and again"
        # What is stored again is there again, and the note goes.
        await place.ended("moo")
        await place.tidy()
        assert place.blobs.open_path(place.argument("moo").name).exists()
        assert not list(place.blobs.folder.glob("*/*.pruned"))


async def test_the_oldest_go_first_when_there_is_too_much(tmp_path: Path) -> None:
    async with ranch(tmp_path) as place:
        for name in ("aa", "bb", "cc"):
            await place.ended(name)
        await place.tidy(artifacts_gb=45_000 / 1e9)
        assert place.argument("aa").exists(), "whoever waited for it may still fetch it"
        place.later(FETCH_S + 60)
        await place.tidy(artifacts_gb=45_000 / 1e9)
        assert [place.argument(name).exists() for name in ("aa", "bb", "cc")] == [False, True, True]


async def test_what_living_jobs_name_stays(tmp_path: Path) -> None:
    async with ranch(tmp_path) as place:
        await place.ended("shared")
        argument = Blob.of(b"shared" * 10_000, inline=False)
        call = FunctionCall(function=Blob.of(b"f"), arguments=argument)
        living = replace(function_job(needs=Needs(labels=("none such",))), work=call)
        await place.life.queue.submit([living])
        place.later(100 * DAY_S)
        await place.tidy(history_s=DAY_S, artifacts_s=0.0, artifacts_gb=1e-9)
        assert place.argument("shared").exists()


async def test_an_asset_stays_while_a_job_that_is_not_over_names_it(tmp_path: Path) -> None:
    async with ranch(tmp_path) as place:
        asset = await place.blobs.put_bytes(b"data" * 10_000)
        job = replace(
            function_job(needs=Needs(gpus=8)),
            inputs=(Input("data", asset.sha256, 0),),
            wait=True,
        )
        waiting = (await place.life.queue.submit([job]))[0].job
        head = place.life.store.head(waiting)
        document = decode_document(place.life.store.journal.document(head.submitted_seq))
        assert document.inputs == (Input("data", asset.sha256, asset.size),), "closed by its size"
        place.later(100 * DAY_S)
        await place.tidy(artifacts_s=1.0, artifacts_gb=1e-9)
        assert place.blobs.path(asset.sha256).exists()
        await place.life.queue.cancel(waiting)
        place.later(100 * DAY_S)
        await place.tidy(artifacts_s=1.0)
        assert not place.blobs.path(asset.sha256).exists()
        with pytest.raises(AssetNotFound, match="Put it"):
            await place.life.queue.retry(waiting)


async def test_uploads_that_no_job_names(tmp_path: Path) -> None:
    async with ranch(tmp_path) as place:
        blob = await place.blobs.put_bytes(b"x" * 50_000)
        await place.tidy()
        assert place.blobs.path(blob.sha256).exists(), "its job may be on its way"
        place.later(2 * DAY_S)
        counting = Retention(
            place.life.store, place.blobs, place.life.spool, KEEP, clock=lambda: place.now
        )
        await counting.turn()
        assert place.blobs.path(blob.sha256).exists(), "somebody has just sent it"
        await place.tidy()
        with pytest.raises(BlobNotFound):
            place.blobs.open_path(blob.sha256)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 100), st.one_of(st.none(), st.just(float("inf")), st.floats(0, 1e6))
        ),
        max_size=20,
    ),
    st.floats(0, 1e6),
    st.integers(0, 500),
)
def test_due(sizes: list[tuple[int, float | None]], keep_s: float, limit: int) -> None:
    now = 1e6
    things = [
        KeptBytes(name=f"{n:03}", size=size, at=0.0 if ended is None else 1.0, ended_at=ended)
        for n, (size, ended) in enumerate(sizes)
    ]
    found = due(things, now, keep_s=keep_s, limit=limit, unclaimed_s=10.0)
    gone = {one.name for one, _ in found}
    left = [one for one in things if one.name not in gone]
    for one, noted in found:
        assert one.ended_at != float("inf"), "nothing of a living job"
        assert noted == (one.ended_at is not None)
    ended = [one for one in left if one.ended_at is not None and one.size and one.ended_at < now]
    assert all(one.ended_at >= now - keep_s for one in ended if one.ended_at is not None)
    if sum(one.size for one in left) > limit:
        assert all(one.ended_at is not None and one.ended_at >= now - FETCH_S for one in ended)
    oldest_left = min((one.ended_at for one in ended if one.ended_at is not None), default=now)
    assert all(one.ended_at is None or one.ended_at <= oldest_left for one, _ in found)


async def test_a_damaged_record_saves_the_bytes(tmp_path: Path) -> None:
    """By a damaged record, bytes that a job names could seem to be nobody's."""
    async with ranch(tmp_path) as place:
        await place.ended("moo")
        damage(place.life.journal.folder, "UPDATE journal SET document = '{}' WHERE seq = 1")
        place.later(10 * DAY_S)
        with pytest.raises(JournalDamaged):
            await place.tidy()
        assert place.argument("moo").exists()
        assert os.path.getsize(place.argument("moo"))
