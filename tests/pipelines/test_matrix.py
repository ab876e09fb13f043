"""Slots in prompts, filled in four ways."""

from __future__ import annotations

import random

import pytest

from corral.core.errors import InvalidPlan, TooManyRecords
from tests.pipelines.plans import built

SLOTS = {"weather": ["rain", "snow"], "time": ["dawn", "noon", "night"]}
ALL = ["rain dawn", "rain noon", "rain night", "snow dawn", "snow noon", "snow night"]


def prompts(texts: list[str], **matrix: object) -> list[str]:
    return [one.positive for one in built(prompts=texts, matrix=matrix).records]


def test_fanout_has_all_combinations_in_order() -> None:
    assert prompts(["a [[weather]] [[time]]", "b [[weather]] [[time]]"], slots=SLOTS) == [
        f"{name} {one}" for name in "ab" for one in ALL
    ]


def test_fanout_combines_the_slots_that_a_prompt_has() -> None:
    assert prompts(["[[weather]] [[time]]", "b [[time]]", "c"], slots=SLOTS) == [
        *ALL,
        "b dawn",
        "b noon",
        "b night",
        "c",
    ]


def test_sequential_repeats_the_last() -> None:
    found = prompts(["[[weather]] [[time]]"] * 8, slots=SLOTS, mode="sequential")
    assert found == [*ALL, "snow night", "snow night"]


def test_rotate_begins_again() -> None:
    found = prompts(["[[weather]] [[time]]"] * 8, slots=SLOTS, mode="rotate")
    assert found == [*ALL, "rain dawn", "rain noon"]


def test_random_is_a_choice_by_its_seed() -> None:
    dice = random.Random(5)
    found = prompts(["[[weather]] [[time]]"] * 20, slots=SLOTS, mode="random", rng_seed=5)
    assert found == [dice.choice(ALL) for _ in range(20)]


def test_a_random_seed_that_is_missing_comes_from_the_batch() -> None:
    def chosen(seed: int) -> list[str]:
        found = built(
            call_seed=seed, prompts=["[[time]]"] * 20, matrix={"slots": SLOTS, "mode": "random"}
        )
        return [one.positive for one in found.records]

    assert chosen(1) == chosen(1) != chosen(2)


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("fanout", ["rain dawn", "rain noon"] * 3),
        ("sequential", ["rain dawn", "rain noon", "rain noon"]),
        ("rotate", ["rain dawn", "rain noon", "rain dawn"]),
    ],
)
def test_a_limit_takes_the_first_combinations(mode: str, told: list[str]) -> None:
    assert prompts(["[[weather]] [[time]]"] * 3, slots=SLOTS, mode=mode, limit=2) == told


def test_negative_prompts_have_slots_too_and_numbers_are_text() -> None:
    found = built(
        prompts=[{"positive": "[[n]] towers", "negative": "no [[n]], [[ n ]]"}],
        matrix={"slots": {"n": [1, 2.5]}},
    )
    assert [(one.positive, one.negative) for one in found.records] == [
        ("1 towers", "no 1, 1"),
        ("2.5 towers", "no 2.5, 2.5"),
    ]


def test_values_are_filled_in_once() -> None:
    assert prompts(["[[a]]"], slots={"a": ["[[b]]"], "b": ["x"]}) == ["[[b]]"]


def test_a_slot_without_values_is_named() -> None:
    with pytest.raises(InvalidPlan, match=r"\[\[wether\]\] has no values. Did you mean `weather`"):
        prompts(["a", "[[wether]]"], slots=SLOTS)


def test_brackets_without_a_matrix_stay_and_are_told() -> None:
    found = built(prompts=["a [[soft]] castle"])
    assert found.records[0].positive == "a [[soft]] castle"
    assert found.warnings == (
        "`prompts[0]` has [[…]] and there is no matrix: it stays as written.",
    )


def test_a_slot_that_no_prompt_has_is_told() -> None:
    assert built(prompts=["[[time]]"], matrix={"slots": SLOTS}).warnings == (
        "No prompt has the slot [[weather]] of the matrix.",
    )


def test_a_bomb_does_not_go_off() -> None:
    slots = {f"s{n}": [f"v{m}" for m in range(1000)] for n in range(20)}
    bomb = " ".join(f"[[{name}]]" for name in slots)
    with pytest.raises(TooManyRecords):
        prompts([bomb], slots=slots)
    assert prompts([bomb], slots=slots, mode="sequential") == [" ".join(["v0"] * 20)]
    with pytest.raises(InvalidPlan, match="longer than 20,000 characters"):
        prompts(["[[a]]" * 4000], slots={"a": ["x" * 4000]})
