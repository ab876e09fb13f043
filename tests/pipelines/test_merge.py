"""Base, then overrides: where they are switched on, and never where they are null."""

from __future__ import annotations

import msgspec

from corral.pipelines.config import Overrides, PlanConfig, merge

BASE = {
    "txt2img": {
        "model": "sdxl",
        "vae": "v1",
        "steps": 20,
        "loras": [{"name": "a"}, {"name": "b"}],
        "hires": {"factor": 1.5, "upscaler": "Latent"},
    },
    "upscale": {"factor": 2},
}


def merged(overrides: object, base: object = BASE) -> object:
    config = msgspec.convert(base, PlanConfig)
    found = merge(config, msgspec.convert(overrides, Overrides))
    return msgspec.json.decode(msgspec.json.encode(found))


def test_what_is_given_replaces_and_the_rest_stays() -> None:
    assert merged({"txt2img": {"steps": 30}}) == {
        "txt2img": {
            "model": "sdxl",
            "vae": "v1",
            "steps": 30,
            "loras": [{"name": "a"}, {"name": "b"}],
            "hires": {"factor": 1.5, "upscaler": "Latent"},
        },
        "upscale": {"factor": 2.0},
    }


def test_a_switched_off_override_changes_nothing() -> None:
    off = {"txt2img": {"apply": False, "steps": 30}, "upscale": {"apply": True, "factor": 4}}
    assert merged(off) == {
        "txt2img": BASE["txt2img"],
        "upscale": {"factor": 4.0},
    }


def test_null_keeps_the_base() -> None:
    assert merged({"txt2img": {"vae": None, "steps": None}}) == merged({})
    assert merged({"img2img": {"denoise": None}}) == merged({})


def test_nested_settings_merge_and_lists_are_replaced() -> None:
    change = {"txt2img": {"hires": {"factor": 2}, "loras": [{"name": "c", "weight": 0.5}]}}
    assert merged(change) == {
        "txt2img": {
            "model": "sdxl",
            "vae": "v1",
            "steps": 20,
            "loras": [{"name": "c", "weight": 0.5}],
            "hires": {"factor": 2.0, "upscaler": "Latent"},
        },
        "upscale": {"factor": 2.0},
    }


def test_an_override_may_add_a_stage() -> None:
    assert merged({"adetailer": {"denoise": 0.2}}, {}) == {"adetailer": {"denoise": 0.2}}


def test_off_and_empty_are_values() -> None:
    assert merged(
        {"txt2img": {"enabled": False, "vae": "", "loras": []}}, {"txt2img": BASE["txt2img"]}
    ) == {
        "txt2img": {
            "enabled": False,
            "model": "sdxl",
            "vae": "",
            "steps": 20,
            "loras": [],
            "hires": {"factor": 1.5, "upscaler": "Latent"},
        },
    }


def test_neither_is_mutated() -> None:
    base = msgspec.convert(BASE, PlanConfig)
    overrides = msgspec.convert({"txt2img": {"steps": 30, "hires": {"factor": 3}}}, Overrides)
    before = msgspec.json.encode(base), msgspec.json.encode(overrides)
    assert merge(base, overrides) != base
    assert (msgspec.json.encode(base), msgspec.json.encode(overrides)) == before
