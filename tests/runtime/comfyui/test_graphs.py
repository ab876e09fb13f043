"""Graphs and names for ComfyUI, without a server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from corral.core.images.pipeline import (
    ADetailer,
    Hires,
    Img2Img,
    Lora,
    Record,
    Refiner,
    Txt2Img,
    Upscale,
)
from corral.runtime.pipeline.comfyui import errors, graphs
from corral.runtime.pipeline.comfyui.errors import invalid, refused
from corral.runtime.pipeline.comfyui.names import by_key, files_like, sampler_and_scheduler
from tests.fakes.comfyui_nodes import SAMPLERS, SCHEDULERS


def as_it_is(kind: str, field: str, wanted: str) -> str:
    return wanted


def inputs(graph: graphs.Graph, kind: str) -> list[dict[str, Any]]:
    return [node["inputs"] for node in graph.nodes.values() if node["class_type"] == kind]


@pytest.mark.parametrize(
    ("sampler", "scheduler", "both"),
    [
        ("", "", ("euler", "normal")),
        ("euler a", "", ("euler_ancestral", "normal")),
        ("Euler a", "Automatic", ("euler_ancestral", "normal")),
        ("DPM++ 2M", "karras", ("dpmpp_2m", "karras")),
        ("DPM++ 2M Karras", "", ("dpmpp_2m", "karras")),
        ("DPM++ 2M", "", ("dpmpp_2m", "karras")),
        ("dpmpp_2m", "normal", ("dpmpp_2m", "normal")),
        ("DPM++ 2M SDE", "Automatic", ("dpmpp_2m_sde", "exponential")),
        ("DPM++ 2S a", "Exponential", ("dpmpp_2s_ancestral", "exponential")),
        ("DPM2 a", "", ("dpm_2_ancestral", "karras")),
        ("DPM2", "SGM Uniform", ("dpm_2", "sgm_uniform")),
        ("UniPC", "Uniform", ("uni_pc", "normal")),
        ("DDIM", "DDIM", ("ddim", "ddim_uniform")),
        ("heun", "Beta", ("heun", "beta")),
    ],
)
def test_names_that_people_use(sampler: str, scheduler: str, both: tuple[str, str]) -> None:
    found = sampler_and_scheduler(sampler, scheduler)

    assert (by_key(found[0], SAMPLERS), by_key(found[1], SCHEDULERS)) == both


def test_a_sampler_that_nobody_has_is_not_taken_for_another() -> None:
    assert by_key(sampler_and_scheduler("DPM++ 9M", "")[0], SAMPLERS) is None


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("sd_1.5", ["sd_1.5.safetensors"]),
        ("SD_1.5.safetensors [0123abcdef]", ["sd_1.5.safetensors"]),
        ("sd_1", []),
        ("one", ["a/one.ckpt", "b\\one.safetensors"]),
        ("a/one", ["a/one.ckpt"]),
        ("b/one.safetensors", ["b\\one.safetensors"]),
        ("elsewhere/two", ["two.pt"]),
    ],
)
def test_files_that_a_name_means(wanted: str, found: list[str]) -> None:
    offered = ["sd_1.5.safetensors", "a/one.ckpt", "b\\one.safetensors", "two.pt"]
    assert files_like(wanted, offered) == found


def test_the_whole_record_is_in_the_graph() -> None:
    record = Record(
        positive="a castle",
        negative="fog",
        model="base",
        vae="good",
        sampler="Euler a",
        scheduler="Karras",
        steps=9,
        cfg_scale=6.5,
        width=320,
        height=200,
        clip_skip=2,
        loras=(Lora("one", 0.5), Lora("two", -1)),
    )

    graph = graphs.txt2img(Txt2Img(), record, 42, as_it_is)

    assert graph.nodes == {
        "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "base"}},
        "2": {
            "class_type": "LoraLoader",
            "inputs": {
                "lora_name": "one",
                "model": ["1", 0],
                "clip": ["1", 1],
                "strength_model": 0.5,
                "strength_clip": 0.5,
            },
        },
        "3": {
            "class_type": "LoraLoader",
            "inputs": {
                "lora_name": "two",
                "model": ["2", 0],
                "clip": ["2", 1],
                "strength_model": -1,
                "strength_clip": -1,
            },
        },
        "4": {
            "class_type": "CLIPSetLastLayer",
            "inputs": {"clip": ["3", 1], "stop_at_clip_layer": -2},
        },
        "5": {"class_type": "VAELoader", "inputs": {"vae_name": "good"}},
        "6": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["4", 0], "text": "a castle"}},
        "7": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["4", 0], "text": "fog"}},
        "8": {
            "class_type": "EmptyLatentImage",
            "inputs": {"width": 320, "height": 200, "batch_size": 1},
        },
        "9": {
            "class_type": "KSampler",
            "inputs": {
                "model": ["3", 0],
                "positive": ["6", 0],
                "negative": ["7", 0],
                "latent_image": ["8", 0],
                "seed": 42,
                "steps": 9,
                "cfg": 6.5,
                "sampler_name": "euler_ancestral",
                "scheduler": "karras",
                "denoise": 1.0,
            },
        },
        "10": {"class_type": "VAEDecode", "inputs": {"samples": ["9", 0], "vae": ["5", 0]}},
        "11": {"class_type": "PreviewImage", "inputs": {"images": ["10", 0]}},
    }
    assert graph.output == "11"


BASE = Record(positive="x", model="base", steps=20, width=512, height=512)


def test_a_model_keeps_its_own_last_layer_where_nothing_is_skipped() -> None:
    assert inputs(graphs.txt2img(Txt2Img(), BASE, 1, as_it_is), "CLIPSetLastLayer") == []


@pytest.mark.parametrize("vae", ["", "Automatic", "None"])
def test_the_vae_of_the_checkpoint_has_several_names(vae: str) -> None:
    record = msgspec.structs.replace(BASE, vae=vae)

    assert inputs(graphs.txt2img(Txt2Img(), record, 1, as_it_is), "VAELoader") == []


def test_a_refiner_takes_the_last_steps_on_the_same_schedule() -> None:
    graph = graphs.txt2img(Txt2Img(refiner=Refiner("second", 0.8)), BASE, 1, as_it_is)

    first, second = inputs(graph, "KSamplerAdvanced")
    assert (first["start_at_step"], first["end_at_step"]) == (0, 16)
    assert (second["start_at_step"], second["end_at_step"]) == (16, 20)
    assert first["return_with_leftover_noise"] == "enable"
    assert second["add_noise"] == "disable"
    assert second["latent_image"][0] == next(
        node for node, about in graph.nodes.items() if about["inputs"] is first
    )
    assert second["model"] != first["model"]


@pytest.mark.parametrize(("switch", "samplers"), [(1.0, (1, 0)), (0.0, (0, 1))])
def test_a_refiner_may_do_nothing_or_everything(switch: float, samplers: tuple[int, int]) -> None:
    graph = graphs.txt2img(Txt2Img(refiner=Refiner("second", switch)), BASE, 1, as_it_is)

    plain, advanced = inputs(graph, "KSampler"), inputs(graph, "KSamplerAdvanced")
    assert (len(plain), len(advanced)) == samplers
    assert all(one["add_noise"] == "enable" for one in advanced)


@pytest.mark.parametrize(
    ("upscaler", "kinds"),
    [
        ("Latent", ["LatentUpscale"]),
        ("Latent (nearest-exact)", ["LatentUpscale"]),
        ("Lanczos", ["ImageScale"]),
        ("4x-Ultra", ["UpscaleModelLoader", "ImageUpscaleWithModel", "ImageScale"]),
    ],
)
def test_hires_is_a_second_larger_pass(upscaler: str, kinds: list[str]) -> None:
    hires = Hires(factor=1.3, upscaler=upscaler, steps=5, denoise=0.4)

    graph = graphs.txt2img(Txt2Img(hires=hires), BASE, 1, as_it_is)

    first, second = inputs(graph, "KSampler")
    assert (first["steps"], second["steps"], second["denoise"]) == (20, 5, 0.4)
    assert [kind for kind in graph.kinds if "scale" in kind.lower()] == kinds
    (sized,) = inputs(graph, kinds[-1])
    assert (sized["width"], sized["height"]) == (664, 664)


def test_img2img_has_its_own_steps_and_denoise() -> None:
    graph = graphs.img2img(Img2Img(denoise=0.3, steps=6), BASE, 5, "corral/a.png", as_it_is)

    (sampler,) = inputs(graph, "KSampler")
    assert (sampler["seed"], sampler["steps"], sampler["denoise"]) == (5, 6, 0.3)
    assert inputs(graph, "LoadImage") == [{"image": "corral/a.png"}]


def test_details_have_their_own_prompt() -> None:
    stage = ADetailer(positive="a face", confidence=0.6, denoise=0.2)

    graph = graphs.adetailer(stage, BASE, 5, "a.png", as_it_is)

    (detailer,) = inputs(graph, "FaceDetailer")
    assert (detailer["bbox_threshold"], detailer["denoise"], detailer["seed"]) == (0.6, 0.2, 5)
    assert graph.nodes[detailer["positive"][0]]["inputs"]["text"] == "a face"


def test_upscaling_alone_needs_no_model() -> None:
    stage = Upscale(factor=2.5, upscaler="nearest")
    record = Record(positive="", stages=(stage,))

    graph = graphs.upscale(stage, record, "a.png", (33, 20), as_it_is)

    assert graph.kinds == ["LoadImage", "ImageScale", "PreviewImage"]
    (scaled,) = inputs(graph, "ImageScale")
    assert (scaled["width"], scaled["height"]) == (80, 48)
    assert scaled["upscale_method"] == "nearest-exact"


def node_error(kind: str, field: str, value: Any = "x") -> dict[str, Any]:
    extra = {"input_name": field, "received_value": value}
    return {
        "class_type": "Node",
        "errors": [{"type": kind, "message": kind, "extra_info": extra}],
    }


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([("value_not_in_list", "ckpt_name")], "model_missing"),
        ([("value_not_in_list", "clip_name1", "t5xxl.safetensors")], "model_missing"),
        ([("value_not_in_list", "sampler_name")], "stage_missing"),
        ([("value_not_in_list", "upscale_method", "lanczos")], "stage_missing"),
        ([("value_not_in_list", "guide_size_for", True)], "stage_missing"),
        ([("required_input_missing", "new_field")], "stage_missing"),
        ([("value_bigger_than_max", "steps")], "bad_job"),
        ([("value_not_in_list", "ckpt_name"), ("value_smaller_than_min", "steps")], "bad_job"),
        ([("value_not_in_list", "vae_name"), ("required_input_missing", "x")], "model_missing"),
    ],
)
def test_what_errors_of_nodes_mean(found: list[tuple[Any, ...]], code: str) -> None:
    said = {str(place): node_error(*one) for place, one in enumerate(found)}

    assert invalid(said).code == code
    error = {"type": "prompt_outputs_failed_validation", "message": "…"}
    assert refused(400, {"error": error, "node_errors": said}, "").code == code


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (400, {"error": {"type": "invalid_prompt", "message": "Node X does not exist."}},
         "stage_missing"),
        (400, {"error": {"type": "missing_node_type", "message": "X"}}, "stage_missing"),
        (400, {"error": {"type": "prompt_no_outputs", "message": "none"}}, "bad_job"),
        (400, {"error": "no prompt", "node_errors": []}, "bad_job"),
        (403, None, "backend_down"),
        (500, None, "exception"),
    ],
)  # fmt: skip
def test_what_a_refusal_means(status: int, body: Any, code: str) -> None:
    assert refused(status, body, "some text").code == code


def test_no_name_in_a_refusal_is_cut() -> None:
    names = [f"a-long-name-of-a-model-{n:03}.safetensors" for n in range(100)]
    about = {
        "type": "value_not_in_list",
        "message": "Value not in list",
        "details": f"ckpt_name: 'x' not in {', '.join(names)}",
        "extra_info": {"input_name": "ckpt_name", "received_value": "x"},
    }
    failed = errors.invalid({"4": {"class_type": "CheckpointLoaderSimple", "errors": [about]}})
    assert failed.code == "model_missing"

    listed = failed.message.rpartition("'x' not in ")[2].removesuffix(" …").split(", ")
    assert len(listed) > 5
    assert set(listed) <= set(names)
