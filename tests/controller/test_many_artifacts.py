"""A job with very many artifacts is shown, explained, watched and fetched from like any other."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from corral.api.views import LOOKED_AT, job_view, shown
from corral.controller.files.artifacts import ArtifactIndex
from corral.controller.output.pages import Cursor
from corral.controller.why import explain
from corral.core.errors import BlobNotFound
from corral.core.events import ArtifactStored, AttemptStarted, CheckpointStored
from corral.core.job import JobId, State
from tests.controller.shell import Shell, shell
from tests.controller.test_flat import turns_during

MANY = 1_500


def artifacts(job: JobId, first: int = 0, count: int = MANY) -> list[ArtifactStored]:
    names = [f"{number:05d}.png" for number in range(first, first + count)]
    return [
        ArtifactStored(job=job, at=1.0, attempt=1, name=name, size=7, file_sha256="a" * 64)
        for name in names
    ]


@contextlib.asynccontextmanager
async def with_artifacts(home: Path) -> AsyncIterator[tuple[Shell, JobId]]:
    """A controller that started anew and knows of an ended job what its journal says."""
    async with shell(home, seconds=lambda _: 1e6) as corral:
        job = await corral.submit()
        await corral.until(job, AttemptStarted)
        await corral.store.append(artifacts(job))
        checkpoint = CheckpointStored(job=job, at=1.0, attempt=1, size=1, sha256="b" * 64)
        await corral.store.append([checkpoint] * 100)
        await corral.queue.cancel(job)
        await corral.until_ended(job)
    async with shell(home) as again:
        yield again, job


@contextlib.contextmanager
def statements(corral: Shell) -> Iterator[list[str]]:
    """What the journal's reader is asked meanwhile."""
    asked: list[str] = []
    corral.journal._reader.set_trace_callback(asked.append)
    try:
        yield asked
    finally:
        corral.journal._reader.set_trace_callback(None)


async def test_nobody_reads_all_of_them_to_show_or_explain_the_job(tmp_path: Path) -> None:
    async with with_artifacts(tmp_path) as (corral, job):
        with statements(corral) as asked:
            head = corral.store.head(job)
            assert len(asked) < 20
            assert head.state is State.CANCELLED
            view = job_view(corral.store, head)
            assert len(asked) < LOOKED_AT + 40
            assert view.more_artifacts
            assert view.ended_at > 0
            reason = explain(corral.store, job, [])
            assert len(asked) < LOOKED_AT + 300
            assert reason.summary == "cancelled"
            assert reason.history[-1].endswith("cancelled")
            with pytest.raises(BlobNotFound):
                corral.store.result(job)
            assert len(asked) < LOOKED_AT + 320


async def test_few_are_shown_as_ever_and_each_once(tmp_path: Path) -> None:
    async with shell(tmp_path, seconds=lambda _: 1e6) as corral:
        job = await corral.submit()
        await corral.until(job, AttemptStarted)
        stored = [*artifacts(job, 0, 3), *artifacts(job, 0, 1)]
        await corral.store.append(stored)
        for _ in range(2):
            view = shown(cast(Any, corral), job)
            assert [one.name for one in view.artifacts] == ["00001.png", "00002.png", "00000.png"]
            assert not view.more_artifacts
            corral.store.recent.clear()  # from the journal, too


async def test_whoever_goes_through_them_gets_each_once_and_others_have_turns(
    tmp_path: Path,
) -> None:
    async with with_artifacts(tmp_path) as (corral, job):
        index = ArtifactIndex(corral.store)
        first, turns = await turns_during(index.page(job, limit=1000))
        assert turns > MANY // 200
        with statements(corral) as asked:
            rest = await index.page(job, after=first[-1].name, limit=1000)
            assert len(asked) < MANY - 1000 + 20, "what is known is not read again"
            found = await index.find(job, "00017.png")
            assert len(asked) < MANY - 1000 + 40
        assert [one.name for one in [*first, *rest]] == [one.name for one in artifacts(job)]
        assert found.name == "00017.png"
        with pytest.raises(BlobNotFound):
            await index.find(job, "nothing")
        with pytest.raises(BlobNotFound):
            await index.page(job, after="nothing", limit=1)


async def test_what_a_living_job_stores_meanwhile_is_found(tmp_path: Path) -> None:
    async with shell(tmp_path, seconds=lambda _: 1e6) as corral:
        job = await corral.submit()
        await corral.until(job, AttemptStarted)
        await corral.store.append(artifacts(job))
        index = ArtifactIndex(corral.store)
        assert len(await index.page(job, limit=9999)) == MANY
        await corral.store.append(artifacts(job, 5, 1))
        await corral.store.append(artifacts(job, MANY, 1))
        with statements(corral) as asked:
            names = [one.name for one in await index.page(job, after="01499.png", limit=10)]
            assert names == ["00005.png", "01500.png"]
            assert len(asked) < 20


async def test_a_watcher_sees_all_of_them_in_order_and_others_have_turns(tmp_path: Path) -> None:
    async with with_artifacts(tmp_path) as (corral, job):

        async def watched() -> list[str]:
            return [
                one.fact.name
                async for seen in corral.feed.watch(job, Cursor())
                for one in seen
                if isinstance(one.fact, ArtifactStored)
            ]

        names, turns = await turns_during(watched())
        assert names == [one.name for one in artifacts(job)]
        assert turns > 2 * MANY // 200
