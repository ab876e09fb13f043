"""A job hears of its end in time, once."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from corral.agent.attempts.limits import Limits
from corral.core.job import DEFAULT_DURATION_S, Needs
from corral.runtime.channels import remarks

HOUR_S = 3600.0


@pytest.mark.parametrize(
    ("duration_s", "run_s", "said"),
    [
        (HOUR_S, 1.0, ""),
        (HOUR_S, 31.0, "ended after 60.0 min, which holds where no other duration"),
        (HOUR_S, 3300.0, "in 5.0 min this job is ended, after its duration of 60.0 min"),
        (2 * HOUR_S, 31.0, ""),
        (2 * HOUR_S, 1.85 * HOUR_S, "in 9.0 min this job is ended, after its duration of 2.0 h"),
        (30.0, 29.0, ""),  # there is no time to do anything about it
    ],
)
async def test_of_its_end_in_time(duration_s: float, run_s: float, said: str) -> None:
    attempt: Any = SimpleNamespace(
        runner=object(),
        ending=None,
        deadline=time.monotonic() + duration_s - run_s,
        dispatch=SimpleNamespace(duration_s=duration_s, job="01job", needs=Needs()),
        warned_at=0.0,
    )
    told: list[str] = []
    limits = Limits({("01job", 1): attempt}, lambda *_: None, lambda _, words: told.append(words))
    for _ in range(3):
        limits._sweep()
    limits.close()
    assert len(told) == bool(said)
    assert said in "".join(told)


async def test_more_time_moves_its_end_and_the_warning() -> None:
    attempt: Any = SimpleNamespace(
        runner=object(),
        ending=None,
        deadline=time.monotonic() + 300,
        dispatch=SimpleNamespace(duration_s=HOUR_S, job="01job", needs=Needs()),
        warned_at=0.0,
    )
    told: list[str] = []
    limits = Limits({("01job", 1): attempt}, lambda *_: None, lambda _, words: told.append(words))
    limits._sweep()
    attempt.dispatch.duration_s = 3 * HOUR_S
    limits.extended(attempt, HOUR_S)
    limits._sweep()
    assert len(told) == 2
    assert "`corral extend 01job 2h` gives it more time" in told[0]
    assert "this job was given more time: it is ended after 3.0 h, in 2.1 h" in told[1]
    attempt.deadline -= 2 * HOUR_S
    limits._sweep()
    limits.close()
    assert "in 5.0 min this job is ended, after its duration of 3.0 h" in told[2]


def test_the_duration_that_nobody_chose_is_the_same_everywhere() -> None:
    assert remarks.DEFAULT_DURATION_S == DEFAULT_DURATION_S


async def test_early_and_late() -> None:
    attempt: Any = SimpleNamespace(
        runner=object(),
        ending=None,
        deadline=time.monotonic() + HOUR_S - 60,
        dispatch=SimpleNamespace(duration_s=HOUR_S, job="01job", needs=Needs()),
        warned_at=0.0,
    )
    told: list[str] = []
    limits = Limits({("01job", 1): attempt}, lambda *_: None, lambda _, words: told.append(words))
    limits._sweep()
    attempt.deadline -= HOUR_S - 120
    limits._sweep()
    limits.close()
    first, second = told
    assert "no other duration" in first
    assert "`corral retry 01job --duration 12h` goes on from there" in second
