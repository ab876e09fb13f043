"""Requests are closed, and use names that the server has."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace
from PIL.Image import Image

from corral.core.images.pipeline import (
    ADetailer,
    Hires,
    Img2Img,
    Lora,
    Record,
    Refiner,
    Stage,
    Txt2Img,
    Upscale,
)
from corral.runtime.pipeline import bounded
from corral.runtime.pipeline.backend import listed
from corral.runtime.pipeline.webui.backend import WebUI
from tests.fakes import webui_parts
from tests.fakes.webui import FakeWebUI
from tests.fakes.webui_parts import TITLES, digest_of
from tests.runtime.webui.rendering import RECORD, Open, raw, refused, render, sent, square


def test_a_record_gives_the_same_pixels_every_time(webui: WebUI) -> None:
    first, again = render(webui), render(webui)
    other = render(webui, replace(RECORD, seed=8))
    assert first.images[0].size == (64, 64)
    assert first.images[0].tobytes() == again.images[0].tobytes() != other.images[0].tobytes()
    assert first.seeds == [7]
    assert first.info["models"] == {"alpha": digest_of(TITLES[0])}
    assert first.info["versions"] == {"webui": "v1.10.1"}


def test_two_servers_with_other_settings_give_the_same_pixels(webui: WebUI, opened: Open) -> None:
    with FakeWebUI() as other:
        other.config |= {"CLIP_stop_at_last_layers": 2, "sd_vae": "soft.safetensors"}
        other.config |= {"eta_noise_seed_delta": 31337, "randn_source": "NV"}
        other.config |= {"sd_vae_overrides_per_model_preferences": False, "sd_lora": "ink"}
        other.config |= {"use_old_hires_fix_width_height": True, "emphasis": "No norm"}
        stage = Txt2Img(hires=Hires())
        here, there = (render(one, RECORD, stage) for one in (webui, opened(url=other.url)))
        assert here.images[0].tobytes() == there.images[0].tobytes()


def test_a_forge_has_its_vae_among_its_modules(webui: WebUI, fake: FakeWebUI) -> None:
    fake.forge = True
    fake.config |= {"sd_model_checkpoint": TITLES[0], **webui_parts.FORGE}
    record = replace(RECORD, vae="soft, Hard")
    render(webui, record, Txt2Img(hires=Hires()))
    (body,) = sent(fake, "txt2img")
    assert body["override_settings"]["forge_additional_modules"] == ["soft.safetensors", "hard.pt"]
    assert body["hr_cfg"] == RECORD.cfg_scale
    assert fake.config["sd_model_checkpoint"] == TITLES[0], "whatever a person has chosen there"
    assert refused(webui, replace(RECORD, vae="omega")).code == "model_missing"
    fake.twist = lambda body: body["override_settings"].pop("forge_additional_modules")
    assert "no module hard" in refused(webui, record).message
    fake.config["forge_additional_modules"] = ["hard.pt"]
    assert "the module hard" in refused(webui).message


def test_nothing_is_left_to_the_server(webui: WebUI, fake: FakeWebUI) -> None:
    render(webui, replace(RECORD, vae="soft", clip_skip=2))
    (body,) = sent(fake, "txt2img")
    wanted = {
        "seed": 7, "width": 64, "height": 64, "sampler_name": "Euler", "scheduler": "Karras",
        "batch_size": 1, "n_iter": 1, "save_images": False, "restore_faces": False,
        "tiling": False, "styles": [], "s_churn": 0.0, "s_noise": 1.0, "eta": 1.0, "steps": 4,
    }  # fmt: skip
    assert {name: body[name] for name in wanted} == wanted
    assert body["subseed"] != -1
    overrides = body["override_settings"]
    assert overrides["sd_model_checkpoint"] == fake.title(TITLES[0])
    assert overrides["sd_vae"] == "soft.safetensors"
    assert overrides["CLIP_stop_at_last_layers"] == 2
    assert overrides["randn_source"] == "CPU"


@pytest.mark.parametrize(
    "name",
    [
        "alpha", "alpha.safetensors", f"alpha.safetensors [{digest_of(TITLES[0])[:10]}]", "Alpha",
        digest_of(TITLES[0]),
    ],
)  # fmt: skip
def test_a_model_in_each_of_its_spellings(webui: WebUI, fake: FakeWebUI, name: str) -> None:
    render(webui, replace(RECORD, model=name))
    assert sent(fake, "txt2img")[0]["override_settings"]["sd_model_checkpoint"] == fake.title(
        TITLES[0]
    )


def test_a_model_in_a_folder(webui: WebUI, fake: FakeWebUI) -> None:
    for name in ("gamma", "deep/gamma.safetensors", "deep_gamma"):
        render(webui, replace(RECORD, model=name))
    assert fake.loads == [TITLES[2]]


def test_a_model_that_is_loaded_is_told(webui: WebUI) -> None:
    models = ["alpha", "alpha", "beta", "beta", "alpha"]
    loaded = [render(webui, replace(RECORD, model=model)).loaded for model in models]
    assert loaded == [True, False, True, False, True]


def test_a_server_that_does_not_hash(webui: WebUI, fake: FakeWebUI) -> None:
    fake.hashes = False
    fake.config["sd_model_checkpoint"] = TITLES[0]
    rendered = render(webui, replace(RECORD, model="beta"))
    assert "does not hash" in rendered.warnings[0]
    fake.twist = lambda body: body["override_settings"].pop("sd_model_checkpoint")
    assert refused(webui, replace(RECORD, model="beta")).code == "backend_mismatch"


@pytest.mark.parametrize(
    ("sampler", "scheduler", "name", "label"),
    [
        ("dpmpp_2m", "karras", "DPM++ 2M", "Karras"),
        ("DPM++ 2M", "", "DPM++ 2M", "Automatic"),
        ("euler_ancestral", "sgm_uniform", "Euler a", "SGM Uniform"),
        ("", "", "Euler", "Automatic"),
        ("Euler a", "Exponential", "Euler a", "Exponential"),
        ("DPM++ SDE Karras", "", "DPM++ SDE", "Karras"),
        ("DPM++ SDE Karras", "karras", "DPM++ SDE", "Karras"),
        ("euler", "normal", "Euler", "Normal"),
    ],
)
def test_samplers_and_schedules_by_any_name(
    webui: WebUI, fake: FakeWebUI, sampler: str, scheduler: str, name: str, label: str
) -> None:
    render(webui, replace(RECORD, sampler=sampler, scheduler=scheduler))
    (body,) = sent(fake, "txt2img")
    assert (body["sampler_name"], body["scheduler"]) == (name, label)


def test_the_schedule_of_a_plan_that_names_none(
    webui: WebUI, fake: FakeWebUI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WebUI 1.9 has it under its other name."""
    older = [one for one in webui_parts.SCHEDULES if one["name"] != "normal"]
    monkeypatch.setattr("tests.fakes.webui.SCHEDULES", older)
    render(webui, replace(RECORD, scheduler="normal"))
    assert sent(fake, "txt2img")[0]["scheduler"] == "Uniform"


@pytest.mark.parametrize(
    ("sampler", "scheduler", "name"),
    [
        ("euler", "normal", "Euler"),
        ("dpmpp_2m", "karras", "DPM++ 2M Karras"),
        ("DPM++ 2M Karras", "", "DPM++ 2M Karras"),
        ("DPM++ 2M Karras", "Karras", "DPM++ 2M Karras"),
        ("k_dpmpp_2m", "", "DPM++ 2M Karras"),
        ("DPM++ 2M", "Uniform", "DPM++ 2M"),
        ("", "Automatic", "Euler"),
    ],
)
def test_before_schedules_had_names_of_their_own(
    webui: WebUI, fake: FakeWebUI, sampler: str, scheduler: str, name: str
) -> None:
    """WebUI 1.8 and older."""
    fake.old = True
    render(webui, replace(RECORD, sampler=sampler, scheduler=scheduler))
    assert sent(fake, "txt2img")[0]["sampler_name"] == name
    assert refused(webui, replace(RECORD, scheduler="SGM Uniform")).code == "model_missing"


def test_overrides_do_not_stay(webui: WebUI, fake: FakeWebUI) -> None:
    before = raw(fake, "txt2img", {"steps": 1})
    render(webui, replace(RECORD, model="beta", vae="soft", clip_skip=3))
    render(webui, stage=Txt2Img())
    after = raw(fake, "txt2img", {"steps": 1})
    told = [json.loads(answer["info"]) for answer in (before, after)]
    for name in ("sd_model_name", "sd_vae_name", "clip_skip"):
        assert told[0][name] == told[1][name]
    assert fake.config["randn_source"] == "GPU"


def test_settings_that_a_server_does_not_know_are_not_sent(
    webui: WebUI, fake: FakeWebUI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(webui_parts.DEFAULTS, "token_merging_ratio_hr")
    monkeypatch.delitem(webui_parts.DEFAULTS, "CLIP_stop_at_last_layers")
    monkeypatch.setattr(fake, "tells", lambda info: info.pop("clip_skip"))
    render(webui)
    assert "token_merging_ratio_hr" not in sent(fake, "txt2img")[0]["override_settings"]
    failed = refused(webui, replace(RECORD, clip_skip=2))
    assert failed.code == "stage_missing"
    assert "CLIP_stop_at_last_layers" in failed.message


def test_images_come_without_loss_where_the_server_has_jpeg(webui: WebUI, fake: FakeWebUI) -> None:
    fake.config["samples_format"] = "jpg"
    first = render(webui).images[0]
    assert first.tobytes() == render(webui).images[0].tobytes()
    assert render(webui, RECORD, Upscale(factor=2), first).images[0].size == (128, 128)
    fake.config["samples_format"] = "png"
    render(webui)
    fake.config["samples_format"] = "jpg"  # chosen just now
    assert first.tobytes() == render(webui).images[0].tobytes()
    assert fake.config["samples_format"] == "jpg"
    fake.sends = "jpeg"
    failed = refused(webui)
    assert failed.code == "backend_mismatch"
    assert "png" in failed.message


@pytest.mark.parametrize(
    ("record", "word"),
    [
        (replace(RECORD, model="omega"), "omega"),
        (replace(RECORD, vae="omega"), "VAE"),
        (replace(RECORD, sampler="omega"), "sampler"),
        (replace(RECORD, scheduler="omega"), "schedule"),
        (replace(RECORD, loras=(Lora("omega"),)), "LoRA"),
        (replace(RECORD, positive="a castle <lora:omega:0.5>"), "LoRA"),
        (replace(RECORD, stages=(Txt2Img(refiner=Refiner("omega")),)), "omega"),
        (replace(RECORD, stages=(Txt2Img(hires=Hires(upscaler="omega")),)), "upscaler"),
        (replace(RECORD, stages=(ADetailer(detector="omega.pt"),)), "detector"),
        (replace(RECORD, stages=(Upscale(upscaler="omega"),)), "upscaler"),
    ],
)
def test_what_a_server_lacks_is_never_asked_for(
    webui: WebUI, fake: FakeWebUI, record: Record, word: str
) -> None:
    images: list[Image] = [] if isinstance(record.stages[0], Txt2Img) else [square()]
    failed = refused(webui, record, None, *images)
    assert failed.code == "model_missing"
    assert word in failed.message
    assert not any(sent(fake, path) for path in ("txt2img", "img2img", "extra-single-image"))


def test_a_record_without_a_model_is_nobodys_choice(webui: WebUI, fake: FakeWebUI) -> None:
    assert refused(webui, replace(RECORD, model="")).code == "bad_job"
    assert not sent(fake, "txt2img")


def test_a_batch_is_cut_into_requests_of_eight(webui: WebUI, fake: FakeWebUI) -> None:
    rendered = render(webui, replace(RECORD, batch_size=20))
    assert [body["batch_size"] for body in sent(fake, "txt2img")] == [8, 8, 4]
    assert rendered.seeds == list(range(7, 27))
    assert len({image.tobytes() for image in rendered.images}) == 20


def test_large_images_go_one_by_one(webui: WebUI, fake: FakeWebUI) -> None:
    fake.vram_pixels = 1
    assert (
        refused(webui, replace(RECORD, batch_size=64, width=4096, height=4096)).code
        == "out_of_memory"
    )
    assert [body["batch_size"] for body in sent(fake, "txt2img")] == [1]


def test_seeds_begin_anew_at_the_end(webui: WebUI) -> None:
    record = replace(RECORD, seed=2**32 - 1, batch_size=2)
    _, second = render(webui, record).images
    assert second.tobytes() == render(webui, replace(RECORD, seed=0)).images[0].tobytes()


def test_img2img_keeps_seeds_and_sizes(webui: WebUI, fake: FakeWebUI) -> None:
    stage = Img2Img(denoise=0.5, steps=3)
    made = render(webui, replace(RECORD, batch_size=2), stage, square(96), square(96))
    assert [image.size for image in made.images] == [(96, 96)] * 2
    assert [body["seed"] for body in sent(fake, "img2img")] == made.seeds == [7, 8]
    assert [body["steps"] for body in sent(fake, "img2img")] == [3, 3]
    assert made.images[0].tobytes() != made.images[1].tobytes()


def test_adetailer_works_on_the_image_that_it_gets(webui: WebUI, fake: FakeWebUI) -> None:
    stage = ADetailer(confidence=0.5)
    made = render(webui, RECORD, stage, square(72)).images[0]
    assert made.size == (72, 72)
    assert made.tobytes() != square(72).tobytes()
    on, only, found = sent(fake, "img2img")[0]["alwayson_scripts"]["ADetailer"]["args"]
    assert (on, only, found["ad_confidence"]) == (True, True, 0.5)
    fake.twist = lambda body: body.update(alwayson_scripts={})
    assert "detector None" in refused(webui, RECORD, stage, square(72)).message


def test_a_server_without_adetailer_says_so(webui: WebUI, fake: FakeWebUI) -> None:
    fake.detailer = False
    failed = refused(webui, RECORD, ADetailer(), square())
    assert failed.code == "stage_missing"
    assert "ADetailer" in failed.message
    assert not sent(fake, "img2img")


def test_upscaling_by_what_the_record_says(webui: WebUI, fake: FakeWebUI) -> None:
    made = render(webui, replace(RECORD, model=""), Upscale(factor=1.5), square(), square(96))
    assert [image.size for image in made.images] == [(96, 96), (144, 144)]
    assert sent(fake, "extra-single-image")[0]["upscaler_1"] == "Lanczos"
    assert refused(webui, RECORD, Upscale(factor=8), square(4096)).code == "bad_job"


def test_an_upscaler_in_another_script_is_no_other(
    webui: WebUI, fake: FakeWebUI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.fakes.webui.UPSCALERS", ("None", "\u5199\u5b9f", "\u6f2b\u753b"))
    render(webui, RECORD, Upscale(upscaler="\u6f2b\u753b"), square())
    assert sent(fake, "extra-single-image")[0]["upscaler_1"] == "\u6f2b\u753b"
    assert refused(webui, RECORD, Upscale(upscaler="\u7f8e"), square()).code == "model_missing"


@pytest.mark.parametrize(("upscaler", "said"), [("ESRGAN_4x", "https://"), ("LDSR", "no file")])
def test_an_upscaler_that_is_listed_and_not_there_is_refused(
    webui: WebUI, fake: FakeWebUI, upscaler: str, said: str
) -> None:
    for stage, images in (
        (Upscale(upscaler=upscaler), [square()]),
        (Txt2Img(hires=Hires(upscaler=upscaler)), []),
    ):
        failed = refused(webui, RECORD, stage, *images)
        assert failed.code == "model_missing"
        assert upscaler in failed.message
        assert said in failed.message
    assert not sent(fake, "extra-single-image")
    assert not sent(fake, "txt2img")


def test_an_upscaler_that_cannot_be_loaded_is_no_success(webui: WebUI) -> None:
    made = render(webui).images[0]
    failed = refused(webui, RECORD, Upscale(upscaler="4x-Cut"), made)
    assert failed.code == "model_missing"
    assert "4x-Cut" in failed.message
    for upscaler in ("R-ESRGAN 4x+", "Lanczos"):
        assert render(webui, RECORD, Upscale(upscaler=upscaler), made).images
    assert render(webui, RECORD, Upscale(upscaler="R-ESRGAN 4x+"), square()).images  # one colour


def test_hires_and_refiner_are_settings_of_txt2img(webui: WebUI, fake: FakeWebUI) -> None:
    stage = Txt2Img(hires=Hires(factor=1.5, denoise=0.3), refiner=Refiner("refine", 0.5))
    assert render(webui, RECORD, stage).images[0].size == (96, 96)
    (body,) = sent(fake, "txt2img")
    assert (body["hr_scale"], body["hr_upscaler"], body["denoising_strength"]) == (
        1.5,
        "Latent",
        0.3,
    )
    assert (body["refiner_checkpoint"], body["refiner_switch_at"]) == (fake.title(TITLES[3]), 0.5)
    fake.twist = lambda body: body.update(refiner_checkpoint="")
    assert "refiner none" in refused(webui, RECORD, stage).message


def test_loras_ride_in_the_prompt(webui: WebUI, fake: FakeWebUI) -> None:
    record = replace(RECORD, loras=(Lora("ink", 0.75), Lora("moody.safetensors")))
    render(webui, record)
    assert sent(fake, "txt2img")[0]["prompt"] == "a castle <lora:ink:0.75> <lora:moody:1>"
    fake.lost_loras = {"moody"}
    assert "no LoRA moody" in refused(webui, record).message
    fake.lost_loras |= {"ink"}
    assert "no LoRA ink" in refused(webui, record).message


@pytest.mark.parametrize(
    "last", [Upscale(upscaler="omega"), ADetailer(detector="omega"), Upscale(upscaler="LDSR")]
)
def test_a_slip_in_the_last_stage_is_found_before_the_first_renders(
    webui: WebUI, fake: FakeWebUI, last: Stage
) -> None:
    failed = refused(webui, replace(RECORD, stages=(Txt2Img(), last)))
    assert failed.code == "model_missing"
    assert not sent(fake, "txt2img")


def test_a_card_names_loras_and_upscalers(webui: WebUI) -> None:
    stage = Txt2Img(hires=Hires(upscaler="R-ESRGAN 4x+"))
    made = render(webui, replace(RECORD, loras=(Lora("ink"),)), stage)
    models = made.info["models"]
    assert models["ink"] == digest_of("ink")[:12]
    assert "R-ESRGAN 4x+" in models
    upscaled = render(webui, RECORD, Upscale(upscaler="R-ESRGAN 4x+"), made.images[0])
    assert upscaled.info["models"] == {"R-ESRGAN 4x+": ""}
    plainly = render(webui, RECORD, Upscale(upscaler="Lanczos"), made.images[0])
    assert plainly.info["models"] == {}


def test_what_is_near_comes_first_and_no_name_is_cut() -> None:
    names = [f"a-long-name-of-a-model-{n:02}.safetensors" for n in range(40)]
    told = listed([*names, "castle.safetensors"], "castel.safetensors")
    assert told.startswith("castle.safetensors, ")
    assert told.endswith(" and 33 more")
    assert all(one in (*names, "castle.safetensors") for one in told[:-12].split(", "))


def test_thousands_of_loras_are_no_answer_without_end(
    webui: WebUI, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their list has all that training wrote into the files."""
    monkeypatch.setattr(bounded, "SMALL", 30_000)
    assert render(webui, replace(RECORD, loras=(Lora("ink"),))).images


def test_a_lora_in_a_prompt_is_written_as_the_server_does(webui: WebUI, fake: FakeWebUI) -> None:
    fake.config["lora_add_hashes_to_infotext"] = False
    record = replace(RECORD, positive="a <lora:Ink.safetensors:0.5> castle <lora:MOODY>")
    render(webui, record)
    assert sent(fake, "txt2img")[0]["prompt"] == "a <lora:ink:0.5> castle <lora:moody>"
    stage = ADetailer(positive="a face <lora:Ink>")
    render(webui, replace(record, stages=(stage,)), stage, square())
    (_, _, found) = sent(fake, "img2img")[0]["alwayson_scripts"]["ADetailer"]["args"]
    assert found["ad_prompt"] == "a face <lora:ink>"
