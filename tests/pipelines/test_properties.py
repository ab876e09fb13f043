"""What holds for every plan."""

from __future__ import annotations

import copy
import itertools
import math
import random
from typing import Any, TypeVar

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.core.images.pipeline import (
    STAGES,
    Record,
    canonical,
    decode_record,
    digest_of,
    encode_record,
    stage_name,
)
from corral.pipelines import Built, build, parse
from corral.pipelines.config import Overrides, PlanConfig, merge

T = TypeVar("T")


def few(values: st.SearchStrategy[T], *, unique: bool = False) -> st.SearchStrategy[list[T]]:
    return st.lists(values, min_size=1, max_size=3, unique=unique)


names = st.text("abc[]", max_size=6)
axes = st.fixed_dictionaries(
    {},
    optional={
        "model": few(st.sampled_from(["m1", "m2", "sdxl"]), unique=True),
        "sampler": few(st.sampled_from(["euler", "ddim"]), unique=True),
        "cfg_scale": few(st.integers(1, 9), unique=True),
        "steps": few(st.integers(1, 9), unique=True),
        "batch_size": few(st.integers(1, 9), unique=True),
    },
)
variants = st.fixed_dictionaries(
    {"axes": axes},
    optional={
        "max_variants": st.integers(1, 5),
        "rng_seed": st.integers(0, 9),
        "seed_mode": st.sampled_from(["none", "fixed", "per_variant"]),
        "base_seed": st.one_of(st.none(), st.integers(-1, 2**31)),
    },
)
matrices = st.fixed_dictionaries(
    {"slots": st.fixed_dictionaries({"x": few(names), "y": few(names)})},
    optional={
        "mode": st.sampled_from(["fanout", "sequential", "rotate", "random"]),
        "limit": st.integers(1, 4),
    },
)
prompts = few(st.sampled_from(["a", "b [[x]]", "[[x]] [[y]]", "[[y]], c"]))
sweeps = st.fixed_dictionaries(
    {},
    optional={
        "txt2img.width": few(st.sampled_from([64, 128, 512])),
        "upscale.factor": few(st.sampled_from([None, 1.5, 4])),
    },
)
plans = st.fixed_dictionaries(
    {
        "base": st.just({"txt2img": {"model": "m", "steps": 3}, "upscale": {"factor": 2}}),
        "prompts": prompts,
        "matrix": matrices,
    },
    optional={
        "seed": st.integers(0, 2**53),
        "sweep": sweeps,
        "variants": variants,
        "batches": st.integers(1, 4),
        "stages": st.permutations(["txt2img", "upscale"]),
    },
)


def made(plan: dict[str, Any]) -> Built:
    return build(parse(plan), seed=5)


def rows_of(plan: dict[str, Any]) -> int:
    """By the rule, not by the code."""
    matrix = plan["matrix"]
    if matrix.get("mode", "fanout") != "fanout":
        return len(plan["prompts"])
    counts = (
        math.prod(len(values) for name, values in matrix["slots"].items() if f"[[{name}]]" in text)
        for text in plan["prompts"]
    )
    return sum(int(min(one, matrix.get("limit", one))) for one in counts)


def variants_of(plan: dict[str, Any]) -> int:
    asked = plan.get("variants", {})
    count = math.prod(len(values) for values in asked.get("axes", {}).values())
    return int(min(count, asked.get("max_variants", count)))


@given(plans)
@settings(max_examples=150, deadline=None)
def test_their_number_is_the_product(plan: dict[str, Any]) -> None:
    sizes = (
        rows_of(plan),
        math.prod(len(values) for values in plan.get("sweep", {}).values()),
        variants_of(plan),
        plan.get("batches", 1),
    )
    found = made(plan)
    assert len(found.records) == math.prod(sizes)
    assert len(found.needs) == len(found.digests) == len(found.records)
    places = [
        (one.row, one.config_index, one.variant_index, one.batch_index) for one in found.records
    ]
    assert places == list(itertools.product(*map(range, sizes)))


@given(plans)
@settings(max_examples=150, deadline=None)
def test_no_two_share_a_seed_that_must_differ(plan: dict[str, Any]) -> None:
    found = made(plan).records
    assert all(0 <= one.seed < 2**32 for one in found)
    mode = plan.get("variants", {}).get("seed_mode", "none")
    if mode == "none":
        images = [one.seed + n for one in found for n in range(one.batch_size)]
        assert len(set(images)) == len(images)
    for _, copies in itertools.groupby(
        found, key=lambda r: (r.row, r.config_index, r.variant_index)
    ):
        seeds = [one.seed for one in copies]
        assert len(set(seeds)) == len(seeds)
    if mode == "per_variant":
        for _, alike in itertools.groupby(found, key=lambda r: (r.row, r.config_index)):
            seeds = [one.seed for one in alike]
            assert sorted(seeds) == list(range(min(seeds), min(seeds) + len(seeds)))


@given(plans)
@settings(max_examples=100, deadline=None)
def test_the_same_plan_gives_the_same_bytes(plan: dict[str, Any]) -> None:
    before = copy.deepcopy(plan)
    first = made(plan)
    assert plan == before
    travelled = msgspec.json.decode(msgspec.json.encode(plan))
    random.seed(1)
    second = made(travelled)
    assert list(map(encode_record, first.records)) == list(map(encode_record, second.records))
    assert msgspec.json.encode(first) == msgspec.json.encode(second)
    assert first.seed == plan.get("seed", 5)
    assert made(plan | {"seed": first.seed}).digests == first.digests


@given(plans)
@settings(max_examples=100, deadline=None)
def test_records_are_closed_and_in_order(plan: dict[str, Any]) -> None:
    found = made(plan)
    for one, digest in zip(found.records, found.digests, strict=True):
        assert decode_record(encode_record(one)) == one
        assert digest_of(one) == digest
        assert one.model
        assert one.sampler
        assert one.scheduler
        order = [STAGES.index(stage_name(stage)) for stage in one.stages]
        assert order == sorted(order)


settings_of = st.fixed_dictionaries(
    {},
    optional={
        "steps": st.one_of(st.none(), st.integers(1, 9)),
        "model": st.one_of(st.none(), names),
        "enabled": st.one_of(st.none(), st.booleans()),
        "hires": st.one_of(
            st.none(), st.fixed_dictionaries({}, optional={"steps": st.integers(0, 9)})
        ),
    },
)


@given(settings_of, settings_of, st.booleans())
def test_a_merge_takes_what_is_given_and_mutates_nothing(
    base: dict[str, Any], override: dict[str, Any], apply: bool
) -> None:
    config = msgspec.convert({"txt2img": base}, PlanConfig)
    overrides = msgspec.convert({"txt2img": {**override, "apply": apply}}, Overrides)
    before = msgspec.json.encode((config, overrides))
    found = merge(config, overrides).txt2img
    assert msgspec.json.encode((config, overrides)) == before
    assert found is not None
    for name in ("steps", "model", "enabled"):
        changed = apply and override.get(name) is not None
        assert getattr(found, name) == (override if changed else base).get(name)


@given(st.builds(Record, positive=names, negative=names, steps=st.integers(1, 30)))
def test_equal_records_have_equal_digests(record: Record) -> None:
    told = msgspec.json.decode(
        msgspec.json.encode({name: getattr(record, name) for name in Record.__struct_fields__}),
        type=Record,
    )
    assert told == record == canonical(told)
    assert digest_of(told) == digest_of(record)
