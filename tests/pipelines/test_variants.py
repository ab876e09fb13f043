"""Axes, combined in their own order, shuffled by a seed, cut; and the seeds of variants."""

from __future__ import annotations

import random

import msgspec
import pytest

from corral.core.errors import InvalidPlan, TooManyRecords
from corral.pipelines.plan import Variants
from corral.pipelines.variants import digest, expand, resolved
from tests.pipelines.plans import built

AXES = {"steps": [10, 30], "model": ["m1", "m2"]}


def expanded(limit: int = 1000, **plan: object) -> list[dict[str, object]]:
    return expand(resolved(msgspec.convert(plan, Variants), 0), limit=limit)


SHUFFLED = [2, 1, 3, 0]
"""What random.Random(42).shuffle makes of [0, 1, 2, 3]."""


def test_python_still_shuffles_so() -> None:
    numbers = [0, 1, 2, 3]
    random.Random(42).shuffle(numbers)
    assert numbers == SHUFFLED


def test_the_product_in_order_of_axes_shuffled_and_cut() -> None:
    ordered = [
        {"model": "m1", "steps": 10},
        {"model": "m1", "steps": 30},
        {"model": "m2", "steps": 10},
        {"model": "m2", "steps": 30},
    ]
    assert expanded(axes=AXES, rng_seed=42) == [ordered[place] for place in SHUFFLED]
    assert expanded(axes=AXES, rng_seed=42, max_variants=3) == [
        {"model": "m2", "steps": 10},
        {"model": "m1", "steps": 30},
        {"model": "m2", "steps": 30},
    ]


def test_all_seven_axes_take_part_in_their_order() -> None:
    axes = {
        "batch_size": [1, 2],
        "steps": [5],
        "cfg_scale": [7],
        "scheduler": ["karras"],
        "sampler": ["euler"],
        "vae": ["v"],
        "model": ["m"],
    }
    found = sorted(expanded(axes=axes), key=lambda one: str(one["batch_size"]))
    assert [list(one.items()) for one in found] == [
        [
            ("model", "m"),
            ("vae", "v"),
            ("sampler", "euler"),
            ("scheduler", "karras"),
            ("cfg_scale", 7.0),
            ("steps", 5),
            ("batch_size", size),
        ]
        for size in (1, 2)
    ]


def test_no_axis_is_one_variant_that_sets_nothing() -> None:
    assert expanded() == [{}]
    assert expanded(max_variants=5) == [{}]


def test_too_many_combinations_are_never_made() -> None:
    axes = {"steps": list(range(1, 1001)), "model": [f"m{n}" for n in range(1000)]}
    with pytest.raises(TooManyRecords, match="1,000,000 combinations") as caught:
        expanded(axes=axes, max_variants=1)
    assert caught.value.details["path"] == "variants.axes"


def seeds(batches: int = 2, **plan: object) -> list[tuple[int, int, int]]:
    found = built(variants={"axes": AXES, "rng_seed": 42, **plan}, batches=batches).records
    return [(one.variant_index, one.batch_index, one.seed) for one in found]


def test_fixed_seeds_count_batches() -> None:
    assert seeds(seed_mode="fixed", base_seed=10, max_variants=2) == [
        (0, 0, 10),
        (0, 1, 11),
        (1, 0, 10),
        (1, 1, 11),
    ]


def test_seeds_per_variant_count_variants_and_then_batches() -> None:
    assert seeds(seed_mode="per_variant", base_seed=10, max_variants=3) == [
        (0, 0, 10),
        (0, 1, 13),
        (1, 0, 11),
        (1, 1, 14),
        (2, 0, 12),
        (2, 1, 15),
    ]


def test_drawn_seeds_all_differ() -> None:
    found = [seed for _, _, seed in seeds(seed_mode="none", batches=50)]
    assert len(set(found)) == 200
    assert found != sorted(found)


@pytest.mark.parametrize("missing", [None, -1])
def test_a_missing_base_seed_is_drawn_once_from_the_batch(missing: int | None) -> None:
    first, second = (
        [
            one.seed
            for one in built(
                call_seed=seed,
                prompts=["a", "b"],
                variants={"seed_mode": "fixed", "base_seed": missing},
                batches=2,
            ).records
        ]
        for seed in (1, 2)
    )
    assert first[1] == first[0] + 1
    assert first[:2] == first[2:]
    assert first != second


def test_a_base_seed_too_large_is_named() -> None:
    fits = seeds(seed_mode="fixed", base_seed=2**32 - 2, max_variants=1)
    assert [seed for _, _, seed in fits] == [2**32 - 2, 2**32 - 1]
    with pytest.raises(InvalidPlan, match="seeds grow beyond 4294967295") as caught:
        seeds(seed_mode="fixed", base_seed=2**32 - 1, max_variants=1)
    assert caught.value.details["path"] == "variants.base_seed"


def test_the_digest_is_of_what_is_meant_not_of_how_it_is_written() -> None:
    bare = msgspec.convert({"axes": AXES, "rng_seed": 1}, Variants)
    told = msgspec.convert(
        {"rng_seed": 1, "seed_mode": "none", "base_seed": None, "axes": AXES}, Variants
    )
    other = msgspec.convert({"axes": AXES, "rng_seed": 2}, Variants)
    assert digest(bare) == digest(told) != digest(other)
    assert len(digest(bare)) == 64
