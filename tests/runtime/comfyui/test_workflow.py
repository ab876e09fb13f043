"""A workflow of the user's own for ComfyUI."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corral.core.images.backends import ComfyUIEntry, Workflow
from corral.core.images.pipeline import Img2Img, Upscale
from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.comfyui.backend import ComfyUI
from corral.runtime.pipeline.kinds import offer_of
from tests.fakes.comfyui import FakeComfyUI
from tests.fakes.comfyui_nodes import picture
from tests.runtime.comfyui.rendering import (
    changed,
    held,
    only_prompt,
    render,
)

WORKFLOW: dict[str, Any] = {
    "3": {
        "class_type": "KSampler",
        "inputs": {
            "seed": 0, "steps": 2, "cfg": 5.0, "sampler_name": "ddim", "scheduler": "normal",
            "denoise": 1.0, "model": ["4", 0], "positive": ["6", 0], "negative": ["7", 0],
            "latent_image": ["5", 0],
        },
    },
    "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "anime.safetensors"}},
    "5": {"class_type": "EmptyLatentImage", "inputs": {"width": 64, "height": 64, "batch_size": 1}},
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "", "clip": ["4", 1]}},
    "7": {"class_type": "CLIPTextEncode", "inputs": {"text": "", "clip": ["4", 1]}},
    "8": {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0], "vae": ["4", 2]}},
    "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0], "filename_prefix": "mine"}},
}  # fmt: skip
MAP: dict[str, str | list[str]] = {
    "positive": "6.text", "negative": "7.text", "seed": "3.seed", "model": "4.ckpt_name",
    "width": "5.width", "height": "5.height", "sampler": "3.sampler_name",
    "scheduler": "3.scheduler", "steps": "3.steps",
}  # fmt: skip


@pytest.fixture
def with_workflow(server: FakeComfyUI, tmp_path: Path) -> Iterator[Callable[..., ComfyUI]]:
    opened = []

    def make(nodes: Any = WORKFLOW, **options: Any) -> ComfyUI:
        file = tmp_path / "mine.json"
        file.write_text(nodes if isinstance(nodes, str) else json.dumps(nodes))
        workflow = Workflow(file=str(file), **{"map": MAP, **options})
        opened.append(ComfyUI(url=server.url, workflow=msgspec.to_builtins(workflow)))
        return opened[-1]

    yield make
    for backend in opened:
        backend.close()


def test_a_workflow_gets_what_its_map_names(
    server: FakeComfyUI, with_workflow: Callable[..., ComfyUI]
) -> None:
    backend = with_workflow(map={**MAP, "seed": ["3.seed"]})

    rendered = render(backend)

    graph = only_prompt(server)
    assert graph["6"]["inputs"]["text"] == "a castle"
    assert graph["3"]["inputs"]["seed"] == 7
    assert graph["3"]["inputs"]["sampler_name"] == "dpmpp_2m"
    assert graph["4"]["inputs"]["ckpt_name"] == "SDXL/sdxl_1.0.safetensors"
    assert rendered.images[0].size == (128, 64)
    assert rendered.info["workflow"]["file"].endswith("mine.json")
    assert rendered.warnings == [
        "The workflow has its own cfg_scale, clip_skip: the record's are not in its map."
    ]
    upscaled = render(backend, stage=Upscale(), images=tuple(rendered.images))
    assert upscaled.images[0].size == (256, 128)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"sampler": "euler a"}, "sampler"),
        ({"scheduler": "karras"}, "scheduler"),
        ({"steps": 30}, "steps"),
        ({"cfg_scale": 3.0}, "cfg_scale"),
        ({"width": 256}, "width"),
        ({"clip_skip": 2}, "clip_skip"),
        ({"stages": (Img2Img(steps=9),)}, "steps"),
        ({"stages": (Img2Img(denoise=0.9),)}, "denoise"),
    ],
)
def test_a_setting_that_a_workflow_has_no_place_for_is_refused(
    server: FakeComfyUI,
    with_workflow: Callable[..., ComfyUI],
    given: dict[str, Any],
    place: str,
) -> None:
    usual = {"sampler": "euler", "scheduler": "normal", "steps": 20, "width": 512, "height": 512}
    record = changed(**{**usual, **given})
    bare = {name: MAP[name] for name in ("positive", "negative", "seed", "model")}
    stage = record.stages[0]
    images = (picture("one", (64, 64)),) if isinstance(stage, Img2Img) else ()
    nodes = {**WORKFLOW, "1": {"class_type": "LoadImage", "inputs": {"image": ""}}}
    more = {"map": {**bare, "image": "1.image"}, "stage": "img2img"} if images else {"map": bare}

    with pytest.raises(StageFailed, match=f"sets .*{place}") as failed:
        render(with_workflow(nodes, **more), record, stage, images)

    assert failed.value.code == "stage_missing"
    assert not server.submitted


def test_a_setting_that_a_workflow_has_by_itself_is_no_refusal(
    server: FakeComfyUI, with_workflow: Callable[..., ComfyUI]
) -> None:
    bare = {name: MAP[name] for name in ("positive", "negative", "seed", "model")}
    record = changed(sampler="ddim", scheduler="normal", steps=2, cfg_scale=5.0, width=64)

    assert render(with_workflow(map=bare), record).images


def test_a_workflow_may_read_its_model_with_any_node(
    server: FakeComfyUI, with_workflow: Callable[..., ComfyUI]
) -> None:
    nodes = {
        **WORKFLOW,
        "10": {"class_type": "UnetLoaderGGUF", "inputs": {"unet_name": "gone.gguf"}},
        "3": {**WORKFLOW["3"], "inputs": {**WORKFLOW["3"]["inputs"], "model": ["10", 0]}},
    }
    backend = with_workflow(nodes, map={**MAP, "model": "10.unet_name"})

    rendered = render(backend, changed(model="flux1-dev-Q4"))

    assert rendered.loaded
    assert set(rendered.info["models"]) == {"anime.safetensors", "flux/flux1-dev-Q4.gguf"}
    assert only_prompt(server)["10"]["inputs"]["unet_name"] == "flux/flux1-dev-Q4.gguf"
    options = ComfyUIEntry(url=server.url, workflow=backend._workflow).options()
    assert "flux1-dev-Q4" in offer_of(options)[1]


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_workflow_that_only_tells_its_image_shows_it(
    server: FakeComfyUI, with_workflow: Callable[..., ComfyUI], wrapped: bool
) -> None:
    told = {"class_type": "SaveImageWebsocket", "inputs": {"images": ["8", 0]}}
    nodes: dict[str, Any] = {**WORKFLOW, "9": told}

    rendered = render(with_workflow({"prompt": nodes} if wrapped else nodes))

    assert rendered.images[0].size == (128, 64)


def test_errors_in_an_accepted_graph_are_a_failure_and_nothing_of_it_runs(
    server: FakeComfyUI, with_workflow: Callable[..., ComfyUI]
) -> None:
    second = {
        "20": {"class_type": "VAELoader", "inputs": {"vae_name": "gone.safetensors"}},
        "21": {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0], "vae": ["20", 0]}},
        "22": {"class_type": "SaveImage",
               "inputs": {"images": ["21", 0], "filename_prefix": "other"}},
    }  # fmt: skip
    held(server, 1)
    backend = with_workflow({**WORKFLOW, **second}, output="9")

    with pytest.raises(StageFailed, match=r"VAELoader \(node 20\)") as failed:
        render(backend)

    assert failed.value.code == "model_missing"
    assert len(server.submitted) == 1
    server.wait_for_idle()


def test_a_value_that_no_server_takes(with_workflow: Callable[..., ComfyUI]) -> None:
    backend = with_workflow(map={**MAP, "clip_skip": "3.steps"})

    with pytest.raises(StageFailed, match=r"KSampler \(node 3\)") as failed:
        render(backend)

    assert failed.value.code == "bad_job"


@pytest.mark.parametrize(
    ("nodes", "options", "said"),
    [
        ("{", {}, "not JSON"),
        ({"nodes": [], "links": []}, {}, "'Export (API)'; in older versions"),
        ([], {}, "no graph of nodes"),
        ({"1": {"inputs": {}}}, {}, "node 1 has no class_type"),
        (WORKFLOW, {"map": {**MAP, "prompt": "6.text"}}, "A record can fill: positive"),
        (WORKFLOW, {"map": {**MAP, "steps": "3"}}, "say it as node.input"),
        (WORKFLOW, {"map": {**MAP, "steps": "33.steps"}}, "no node 33. It has 3, 4"),
        (WORKFLOW, {"map": {**MAP, "steps": "3.stepz"}}, "has no input 'stepz'. It has model"),
        (WORKFLOW, {"map": {**MAP, "positive": "3.positive"}}, "takes CONDITIONING"),
        (WORKFLOW, {"map": {**MAP, "positive": "3.seed"}}, "takes INT"),
        (WORKFLOW, {"map": {"positive": "6.text"}}, "lacks 'seed'"),
        (WORKFLOW, {"output": "90"}, "it has none"),
        (WORKFLOW, {"map": {"positive": "6.text", "seed": "3.seed"}}, "sets model, negative"),
        (
            {**WORKFLOW, "10": {"class_type": "MyNode", "inputs": {}}},
            {},
            "lacks its nodes MyNode",
        ),
        ({**WORKFLOW, "10": WORKFLOW["9"]}, {}, "nodes 9, 10 all show images"),
    ],
)
def test_a_workflow_that_cannot_be_used_says_why(
    server: FakeComfyUI,
    with_workflow: Callable[..., ComfyUI],
    nodes: Any,
    options: dict[str, Any],
    said: str,
) -> None:
    with pytest.raises(StageFailed) as failed:
        render(with_workflow(nodes, **options))

    assert said in failed.value.message
    assert failed.value.code == "stage_missing"
    assert server.submitted == []


def test_a_workflow_file_that_is_gone(server: FakeComfyUI, tmp_path: Path) -> None:
    backend = ComfyUI(url=server.url, workflow={"file": str(tmp_path / "no.json"), "map": MAP})

    with pytest.raises(StageFailed, match="cannot be read"):
        render(backend)
    backend.close()


def test_a_workflow_may_be_another_stage(
    server: FakeComfyUI, with_workflow: Callable[..., ComfyUI]
) -> None:
    nodes = {
        **WORKFLOW,
        "10": {"class_type": "LoadImage", "inputs": {"image": "x.png"}},
        "5": {"class_type": "VAEEncode", "inputs": {"pixels": ["10", 0], "vae": ["4", 2]}},
    }
    places = {name: place for name, place in MAP.items() if name not in ("width", "height")}
    places |= {"image": "10.image", "denoise": "3.denoise"}
    backend = with_workflow(nodes, map=places, stage="img2img")

    rendered = render(backend, stage=Img2Img(0.25), images=(picture("one", (64, 32)),))

    assert rendered.images[0].size == (64, 32)
    graph = only_prompt(server)
    assert graph["3"]["inputs"]["denoise"] == 0.25
    assert graph["10"]["inputs"]["image"].endswith(".png")  # any node finds it in the input folder
