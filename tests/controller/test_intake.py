"""How much the intake takes at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from corral.controller.intake import BITE, Intake
from corral.core.events import AttemptReturned, EngineReport
from corral.scheduler.settle import Policy


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
