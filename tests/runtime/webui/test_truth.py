"""What the server says it did is compared with what it was asked to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from corral.core.images.pipeline import Lora
from corral.runtime.pipeline.webui.backend import WebUI
from tests.fakes.webui import FakeWebUI
from tests.fakes.webui_parts import TITLES, Json, digest_of
from tests.runtime.webui.rendering import RECORD, raw, refused, render


def override(name: str, value: Any) -> Callable[[Json], None]:
    return lambda body: body["override_settings"].update({name: value})


def field(name: str, value: Any) -> Callable[[Json], None]:
    return lambda body: body.update({name: value})


@pytest.mark.parametrize(
    ("twist", "word"),
    [
        (override("sd_model_checkpoint", "nowhere"), "model alpha"),
        (override("sd_model_checkpoint", "gamma"), "model gamma"),
        (override("sd_vae", "nowhere"), "VAE None"),
        (override("sd_vae", "hard.pt"), "VAE hard"),
        (override("CLIP_stop_at_last_layers", 1), "clip skip 1"),
        (field("sampler_name", "nowhere"), "sampler DPM++ 2M"),
        (field("scheduler", "nowhere"), "schedule Automatic"),
        (field("width", 72), "72x64"),
        (field("batch_size", 1), "1 image,"),
        (field("seed", -1), "seeds"),
        (field("steps", 3), "steps 3"),
        (field("cfg_scale", 1.5), "cfg scale"),
        (field("prompt", "a castle, masterpiece"), "prompt"),
    ],
)
def test_an_answer_that_is_another_image(
    webui: WebUI, fake: FakeWebUI, twist: Callable[[Json], None], word: str
) -> None:
    record = replace(RECORD, model="beta", vae="soft", clip_skip=2, batch_size=2)
    assert len(render(webui, record).images) == 2
    raw(fake, "txt2img", {"steps": 1})  # somebody's own model is loaded again
    fake.twist = twist
    failed = refused(webui, record)
    assert failed.code == "backend_mismatch"
    assert word in failed.message


def test_a_size_that_only_the_image_shows(webui: WebUI, fake: FakeWebUI) -> None:
    """70 pixels become 64, and `info` still says 70."""
    fake.twist = field("height", 70)
    assert "70" in refused(webui, replace(RECORD, height=72)).message
    fake.twist = lambda body: body.update(enable_hr=True, hr_upscaler="Latent")
    assert "128x128" in refused(webui).message


def test_terms_that_the_server_adds(webui: WebUI, fake: FakeWebUI) -> None:
    fake.adds_to_prompt = ", best quality"
    assert "best quality" in refused(webui).message


def test_a_prompt_is_no_place_for_comments(webui: WebUI) -> None:
    assert render(webui, replace(RECORD, positive="castle #9, rain")).images


def test_a_grid_is_left_out(webui: WebUI, fake: FakeWebUI) -> None:
    record = replace(RECORD, batch_size=3)
    alone = [image.tobytes() for image in render(webui, record).images]
    fake.grid = True
    assert [image.tobytes() for image in render(webui, record).images] == alone


def castles(info: Json) -> None:
    info["all_prompts"] = ["a\n  castle , on <hill>"]


def without_tags(info: Json) -> None:
    info["all_prompts"] = ["a castle, on <hill>"]
    info["cfg_scale"] = 7.0000001
    info["sampler_name"] = "k_euler"
    info["sd_model_name"] = "Alpha"


@pytest.mark.parametrize("tells", [castles, without_tags])
def test_what_a_server_only_writes_in_another_way(
    webui: WebUI, fake: FakeWebUI, tells: Callable[[Json], None]
) -> None:
    record = replace(RECORD, positive="a castle, on <hill>", loras=(Lora("ink"),))
    fake.tells = tells
    if tells is castles:
        record = replace(record, loras=())
    assert render(webui, record).images


def test_images_of_an_extension_are_left_out(webui: WebUI, fake: FakeWebUI) -> None:
    record = replace(RECORD, batch_size=2)
    alone = [image.tobytes() for image in render(webui, record).images]
    fake.more_images = 1
    assert [image.tobytes() for image in render(webui, record).images] == alone


def test_faces_that_nobody_asked_for(webui: WebUI, fake: FakeWebUI) -> None:
    """Somebody made it the default of the browser's form, which is the default for us too."""
    detail = {"ADetailer": {"args": [True, False, {"ad_model": "face_yolov8n.pt"}]}}
    fake.twist = lambda body: body.update(alwayson_scripts=detail)
    assert "ADetailer" in refused(webui).message


def test_a_model_that_is_asked_for_by_its_hash(webui: WebUI, fake: FakeWebUI) -> None:
    other = replace(RECORD, model="alpha.safetensors [0123456789]")
    assert refused(webui, other).code == "model_missing"
    fake.hashes = False
    fake.tells = field("sd_model_hash", digest_of(TITLES[0])[:10])
    webui._stock.forget()
    assert "0123456789" not in refused(webui, other).message
    assert render(webui, replace(other, model=f"alpha [{digest_of(TITLES[0])[:10]}]")).images
