"""Whoever waits in vain learns for what, and what was there instead."""

from __future__ import annotations

import pytest

from tests.eventually import eventually, eventually_async


def test_the_first_true_answer() -> None:
    answers = iter([0, None, 3, 4])
    assert eventually(lambda: next(answers), "a number") == 3
    assert next(answers) == 4


def test_what_never_came_is_named_with_the_last_answer() -> None:
    with pytest.raises(AssertionError, match=r"0.02 s: a number \(the last answer: \[\]\)"):
        eventually(list, "a number", 0.02)


def test_only_errors_that_mean_not_yet_are_waited_out() -> None:
    nothing: dict[str, int] = {}
    with pytest.raises(AssertionError, match=r"a number .*KeyError\('x'\)") as never:
        eventually(lambda: nothing["x"], "a number", 0.02, ignoring=KeyError)
    assert isinstance(never.value.__cause__, KeyError)
    with pytest.raises(KeyError):
        eventually(lambda: nothing["x"], "a number")


async def test_the_same_in_an_event_loop() -> None:
    answers = iter([0, None, 3])

    async def ask() -> int | None:
        return next(answers)

    await eventually_async(ask, "a number")
    await eventually_async(lambda: True, "at once")
    with pytest.raises(AssertionError, match="a number"):
        await eventually_async(lambda: 0, "a number", 0.02)
    with pytest.raises(StopIteration):
        eventually(lambda: next(answers), "a number")
