"""A mistake in a plan is named: its code, its place, and what to write instead."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import msgspec
import pytest

import corral.pipelines
from corral.core.errors import CorralError
from corral.core.job import QueueClass
from corral.pipelines import parse
from corral.pipelines.plan import encode
from tests.pipelines.plans import BASE, built
from tests.pipelines.test_records import ISSUE


def test_the_plan_of_the_issue() -> None:
    plan = parse(ISSUE)
    assert (plan.name, plan.seed, plan.batches) == ("night-1", 42, 2)
    assert plan.queue_class is QueueClass.BATCH
    assert plan.stages == ("txt2img", "upscale")
    assert plan.sweep == {"txt2img.cfg_scale": (5, 7.5, 10)}


def test_it_travels_as_json() -> None:
    plan = parse(ISSUE)
    assert parse(msgspec.json.decode(encode(plan))) == plan


def deep() -> object:
    value: object = 1
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("change", "path", "told"),
    [
        ({"bas": {}}, "bas", "nothing is called so here. Did you mean `base`?"),
        ({"Seed": 1}, "Seed", "Did you mean `seed`?"),
        ({"name": 5}, "name", "it needs text; got 5. Put it in quotes to have it as text."),
        ({"seed": -1}, "seed", "it must be at least 0; got -1."),
        ({"seed": "x"}, "seed", "it needs a whole number; got 'x'."),
        ({"base": []}, "base", "it needs `key: value` pairs; got []."),
        ({"base": {"txt2im": {}}}, "base.txt2im", "Did you mean `txt2img`?"),
        ({"base": {"txt2img": {"modle": "m"}}}, "base.txt2img.modle", "Did you mean `model`?"),
        (
            {"base": {"upscale": {"model": "m"}}},
            "base.upscale.model",
            "`model` stands under `txt2img` and holds for every stage; move it there.",
        ),
        ({"base": {"txt2img": {"model": 1.5}}}, "base.txt2img.model", "Put it in quotes"),
        ({"base": {"txt2img": {"width": 70}}}, "base.txt2img.width", "multiple of 8; got 70."),
        ({"base": {"txt2img": {"width": 99_992}}}, "base.txt2img.width", "at most 8192"),
        ({"base": {"txt2img": {"steps": 0}}}, "base.txt2img.steps", "at least 1; got 0."),
        ({"base": {"txt2img": {"batch_size": 100_000}}}, "base.txt2img.batch_size", "at most 64"),
        ({"base": {"txt2img": {"seed": 2**32}}}, "base.txt2img.seed", "at most 4294967295"),
        ({"base": {"txt2img": {"hires": {"scale": 2}}}}, "base.txt2img.hires.scale", "nothing is"),
        (
            {"overrides": {"txt2img": {"aply": True}}},
            "overrides.txt2img.aply",
            "Did you mean `apply`?",
        ),
        ({"prompts": []}, "prompts", "there is no prompt. Add one, or name a `pack`."),
        ({"prompts": [3]}, "prompts[0]", "Put it in quotes"),
        ({"prompts": ["a", {"negative": "b"}]}, "prompts[1]", "`positive` is missing. Add it."),
        ({"prompts": [{"positve": "b"}]}, "prompts[0].positve", "Did you mean `positive`?"),
        ({"prompts": ["x" * 20_001]}, "prompts[0]", "at most 20000 characters, has 20001."),
        ({"pack": ["a"]}, "pack", "give `prompts` or a `pack`, not both."),
        ({"preset": "p"}, "preset", "a preset stands for `base`; give one of the two"),
        ({"matrix": {"mode": "fan out"}}, "matrix.mode", "Did you mean `fanout`?"),
        ({"matrix": {"slots": {"a": ["x"], "b": []}}}, "matrix.slots.b", "at least 1 entries"),
        ({"matrix": {"slots": {"a": ["x", True]}}}, "matrix.slots.a[1]", "Put it in quotes"),
        ({"sweep": {"txt2img.cfg_scale": 5}}, "sweep.txt2img.cfg_scale", "it needs a list; got 5."),
        ({"sweep": {"txt2img.cgf_scale": [5]}}, "sweep.txt2img.cgf_scale", "mean `cfg_scale`?"),
        ({"sweep": {"txt2img.steps": [5, "x"]}}, "sweep.txt2img.steps", "got 'x'."),
        ({"sweep": {"txt2img": [5]}}, "sweep.txt2img", "it needs `key: value` pairs; got 5."),
        ({"sweep": {"cfg_scale": [5]}}, "sweep.cfg_scale", "`txt2img.cfg_scale`"),
        ({"base": {"model": "m"}}, "base.model", "`base.txt2img.model`"),
        ({"worker": "attic"}, "worker", "`worker` stands under `needs`"),
        ({"sweep": {"": [5]}}, "sweep.", "nothing is called so here."),
        ({"variants": {"axes": {"modle": ["a"]}}}, "variants.axes.modle", "mean `model`?"),
        ({"variants": {"axes": {"model": "a"}}}, "variants.axes.model", "it needs a list; got 'a'"),
        ({"variants": {"axes": {"steps": [10, 0]}}}, "variants.axes.steps[1]", "at least 1; got 0"),
        ({"variants": {"seed_mode": "fix"}}, "variants.seed_mode", "Did you mean `fixed`?"),
        ({"batches": 0}, "batches", "it must be at least 1; got 0."),
        ({"stages": ["txt2im"]}, "stages[0]", "Did you mean `txt2img`?"),
        ({"class": "btch"}, "class", "it is one of interactive, batch; got 'btch'. Did you mean"),
        ({"backend": "auto1111"}, "backend", "it is one of comfyui, "),
        ({"output": "{job}"}, "output", "it needs {job} and {index}, once each"),
        ({"output": "{job.__class__}-{index}"}, "output", "it needs {job} and {index}"),
        ({"output": "{job}-{index:999999999}"}, "output", "it needs {job} and {index}"),
        ({"output": "../{job}-{index}"}, "output", "leave out slashes"),
        ({"output": "{job}-{index"}, "output", "expected '}'"),
        ({"output": "{job}\x9b{index}"}, "output", "leave out slashes"),
        ({"output": "-{job}{index}"}, "output", "begin with no . or -"),
        ({"output": "{job}-{index}" + "ä" * 80}, "output", "longer than 150 bytes"),
        ({"output": "con.{job}-{index}"}, "output", "Windows takes a file of this name"),
        ({"needs": {"worker": "\x1b[2J"}}, "needs", "cannot be printed"),
        ({"needs": {"vram": 5}}, "needs.vram", "Did you mean `vram_gb`?"),
        ({"learning": {"enable": True}}, "learning.enable", "Did you mean `enabled`?"),
        ({"prompts": [{"positive": "a", "inputs": deep()}]}, "prompts[0].inputs[0]", "text"),
        ({"prompts": (), "pack": deep()}, "pack", "nested too deeply"),
        ({"prompts": ["\ud800"]}, "", "text that is no Unicode"),
        ({"base": {True: {}}}, "base", "a key is no text. Put it in quotes: YAML reads on, off"),
        ({"base": {"txt2img": {"cfg_scale": float("nan")}}}, "base.txt2img.cfg_scale", "got nan"),
        ({"x" * 1_000_000: 1}, "x" * 200, "nothing is called so here"),
    ],
)
def test_mistakes(change: dict[str, Any], path: str, told: str) -> None:
    with pytest.raises(CorralError) as caught:
        built(**{"base": BASE, "prompts": ["a"], **change})
    assert caught.value.code == "invalid_plan"
    assert caught.value.details["path"] == path
    assert told in caught.value.message
    assert len(caught.value.message) < 450


@pytest.mark.parametrize("value", [None, [], "base: x", 5])
def test_what_is_no_plan_at_all(value: object) -> None:
    with pytest.raises(CorralError, match="A plan is `key: value` pairs") as caught:
        parse(value)
    assert caught.value.code == "invalid_plan"


def test_brackets_and_blanks_without_end_take_no_time() -> None:
    """Minutes, where a pattern goes back and forth over them."""
    blanks = " " * 19_900
    texts = [f"[[{blanks}", f"{blanks}<lora:x>", f"<lora:{blanks}", "[" * 19_990]
    for text in texts:
        matrix = {"slots": {"a": ["b"]}}
        if text.startswith("<lora:"):
            with pytest.raises(CorralError, match="not of the form"):
                built(prompts=[text] * 50, matrix=matrix)
        else:
            assert len(built(prompts=[text] * 50, matrix=matrix).records) == 50


def test_of_random_numbers_only_seeded_ones() -> None:
    for path in Path(corral.pipelines.__path__[0]).glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert "random" not in [one.name for one in node.names], path
            if isinstance(node, ast.ImportFrom) and node.module == "random":
                assert [one.name for one in node.names] == ["Random"], path
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Random":
                assert node.args, f"{path}:{node.lineno}: without a seed"
