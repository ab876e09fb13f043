"""Packs as other programs write them: what is understood is checked, the rest is told."""

from __future__ import annotations

from typing import Any

import pytest

from corral.core.errors import InvalidPlan, PackNotFound
from corral.core.images.pipeline import Lora
from corral.pipelines.packs import parse
from corral.pipelines.plan import Matrix, Row
from tests.pipelines.plans import built

STABLENEW = {
    "pack_data": {
        "name": "Castles",
        "slots": [
            {
                "index": 0,
                "text": "a [[kind]] castle",
                "negative": "blurry",
                "positive_embeddings": ["bright", ["misty", 0.5]],
                "negative_embeddings": ["bad-hands-5"],
                "loras": [["add-detail-xl", 0.65], ["stone", 1]],
            },
            {"index": 1, "text": "  ", "negative": "", "loras": []},
        ],
        "matrix": {
            "enabled": True,
            "mode": "rotate",
            "limit": 0,
            "slots": [{"name": "kind", "values": ["old", "new"]}],
        },
        "show_preview": True,
    },
    "preset_data": {"txt2img": {"steps": 34}},
}


def test_a_pack_of_stablenew() -> None:
    found = parse(STABLENEW)
    assert found.name == "Castles"
    assert found.rows == (
        Row(
            positive="bright, (misty:0.5), a [[kind]] castle",
            negative="bad-hands-5, blurry",
            loras=(Lora("add-detail-xl", 0.65), Lora("stone", 1.0)),
        ),
    )
    assert found.matrix == Matrix(mode="rotate", slots={"kind": ("old", "new")})
    assert found.warnings == (
        "The pack's own settings (preset_data) are not taken; put them under `base`.",
        "Prompts of the pack without text were left out: 1.",
    )


@pytest.mark.parametrize(
    "pack",
    [
        ["one", "two"],
        {"prompts": ["one", {"positive": "two"}]},
        {"rows": [{"prompt": "one"}, {"text": "two", "negative_prompt": ""}]},
        {"entries": ["one", "", "two"], "name": "x"},
    ],
)
def test_plain_ones(pack: Any) -> None:
    assert [row.positive for row in parse(pack).rows] == ["one", "two"]


@pytest.mark.parametrize(
    "loras",
    [
        [["a", 0.5], ["b", 1]],
        [{"name": "a", "weight": 0.5}, "b"],
        {"a": 0.5, "b": 1},
        [["a", 0.5], ["b"]],
    ],
)
def test_loras_in_all_ways(loras: Any) -> None:
    (row,) = parse([{"positive": "x", "loras": loras}]).rows
    assert row.loras == (Lora("a", 0.5), Lora("b", 1.0))


@pytest.mark.parametrize(
    ("pack", "told"),
    [
        (5, "a pack is JSON"),
        ({"name": "x"}, "it has no list of `prompts`"),
        ([], "none of its prompts has any text"),
        (["ok", 5], r"`pack.prompts\[1\]`: a prompt is text"),
        ([{"positive": "x", "loras": [["a", "much"]]}], r"`pack.prompts\[0\].loras\[0\].weight`"),
        ([{"positive": "x", "loras": [["a", 100]]}], "it must be at most 10"),
        ([{"positive": 5}], r"`pack.prompts\[0\].positive`: it needs text; got 5"),
        ([{"positive": "x" * 20_001}], "at most 20000 characters"),
        ([{"positive": "x", "positive_embeddings": [{}]}], "an embedding is its name"),
        ({"prompts": ["x"], "matrix": {"slots": [{"name": "a", "values": []}]}}, "pack.matrix"),
        ({"prompts": ["x"], "matrix": {"slots": {"a": ["x"]}, "mode": "fan"}}, "is one of fanout"),
        ({"prompts": ["x"], "name": "n" * 300}, "at most 200 characters"),
        (["x"] * 100_001, "more than 100,000"),
    ],
)
def test_mistakes(pack: Any, told: str) -> None:
    with pytest.raises(InvalidPlan, match=told):
        parse(pack)


def test_words_that_mean_nothing_are_told() -> None:
    found = parse({"prompts": [{"positive": "x", "mood": "grim"}], "author": "me"})
    assert found.warnings == (
        "Words of the pack that mean nothing here were left out: author.",
        "Words of its prompts that mean nothing here were left out: mood.",
    )


def test_records_know_their_pack_and_row() -> None:
    found = built(pack={"name": "castles", "prompts": ["a", "b"]}, batches=2)
    assert [(one.pack, one.row, one.positive) for one in found.records] == [
        ("castles", 0, "a"),
        ("castles", 0, "a"),
        ("castles", 1, "b"),
        ("castles", 1, "b"),
    ]


def test_the_matrix_of_the_plan_goes_before_that_of_the_pack() -> None:
    pack = {"prompts": ["[[a]]"], "matrix": {"slots": {"a": ["x", "y"]}}}
    assert [one.positive for one in built(pack=pack).records] == ["x", "y"]
    own = built(pack=pack, matrix={"slots": {"a": ["z"]}}).records
    assert [one.positive for one in own] == ["z"]


def test_a_limit_of_the_pack_holds() -> None:
    matrix = {"slots": [{"name": "a", "values": ["x", "y", "z"]}], "limit": 2}
    found = built(pack={"prompts": ["[[a]]"], "matrix": matrix}).records
    assert [one.positive for one in found] == ["x", "y"]


def test_a_pack_has_to_ride_along() -> None:
    with pytest.raises(PackNotFound, match=r"No pack is called 'castles'\. Give the path"):
        built(pack="castles")


def test_a_nameless_pack_takes_the_name_of_the_plan() -> None:
    assert built(pack=["a"], name="night").records[0].pack == "night"


@pytest.mark.parametrize(
    "pack",
    [
        {"prompts": [{"positive": "a", "positive_embeddings": [["x", 10**400]]}]},
        {"prompts": [{"positive": "a", "negative_embeddings": 5}]},
        {"prompts": ["[[a]]"], "matrix": {"slots": [{"name": ["a"], "values": [1]}]}},
    ],
)
def test_what_other_programs_never_write_is_said_so(pack: dict[str, object]) -> None:
    with pytest.raises(InvalidPlan):
        built(pack=pack)


def test_a_warning_is_short_whatever_the_pack_says() -> None:
    found = parse({"prompts": ["x"], **{"w" * 10_000 + str(n): 1 for n in range(50)}})
    assert len(found.warnings[0]) < 1000
