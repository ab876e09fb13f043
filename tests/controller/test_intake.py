"""How much the intake takes at once, and from whom."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from corral.controller.intake import BITE, Intake
from corral.core.events import (
    AttemptExited,
    AttemptReturned,
    AttemptStarted,
    EngineReport,
    JobSucceeded,
)
from corral.core.job import Blob, State
from corral.scheduler.settle import Policy
from tests.controller.shell import shell


class Talkative:
    """An engine with very much to say at once."""

    async def events(self) -> AsyncIterator[Sequence[EngineReport]]:
        yield [AttemptReturned(f"j{number}", 1, "w", "") for number in range(BITE + 1)]


@pytest.mark.parametrize(("asked", "bites"), [(False, [BITE + 1]), (True, [BITE, 1])])
async def test_who_waits_for_an_answer_gets_a_turn_in_between(
    asked: bool, bites: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing: object = None
    intake = Intake(
        Talkative(),  # type: ignore[arg-type]
        nothing,  # type: ignore[arg-type]
        nothing,  # type: ignore[arg-type]
        policy=Policy(),
        heard=lambda job: None,
        wake=lambda: None,
        early={},
        stop_grace_s=1.0,
        others_ask=lambda: asked,
    )
    taken: list[int] = []

    async def take(reports: Sequence[EngineReport]) -> None:
        taken.append(len(reports))

    monkeypatch.setattr(intake, "take", take)
    async with asyncio.timeout(5):
        await intake.run()
    assert taken == bites


async def test_what_another_worker_says_hides_nothing_of_the_right_one(tmp_path: Path) -> None:
    """In one batch, and before it: the first word is not the last where it is a stranger's."""
    async with shell(tmp_path, seconds=lambda _: 1e6) as corral:
        job = await corral.submit()
        await corral.until(job, AttemptStarted)
        now, digest = time.time(), corral.store.digest(corral.store.head(job))
        foreign = AttemptExited(job, 1, "w2", now, 1.0, digest, Blob.of(b"wrong"))
        right = AttemptExited(job, 1, "w1", now, 1.0, digest, Blob.of(b"right"))
        await corral.intake.take([foreign, right, foreign])
        head = corral.store.head(job)
        assert head.state is State.SUCCEEDED
        (ended,) = [fact for _, fact in corral.store.facts(head) if isinstance(fact, JobSucceeded)]
        assert ended.result == Blob.of(b"right")
