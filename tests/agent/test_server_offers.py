"""What an agent tells of its image servers."""

from __future__ import annotations

from corral.agent.image_servers import ServerOffers, names_at, survey
from corral.core.images.backends import ComfyUIEntry, WebUIEntry
from tests.fakes.comfyui import FakeComfyUI
from tests.fakes.webui import FakeWebUI


def test_a_model_in_a_folder_goes_by_both_names() -> None:
    with FakeWebUI() as fake:
        offer = survey(WebUIEntry(url=fake.url))
    assert [model.name for model in offer.models] == [
        *("alpha", "beta", "gamma", "deep/gamma", "refine"),
    ]


def test_all_else_that_a_webui_has_is_told() -> None:
    with FakeWebUI() as fake:
        names = names_at(WebUIEntry(url=fake.url))
    assert names["sampler"][:2] == ("DPM++ 2M", "DPM++ SDE")
    assert "Karras" in names["schedule"]
    assert names["LoRA"] == ("ink", "moody")
    assert names["upscaler"] == ("Lanczos", "Nearest", "R-ESRGAN 4x+", "4x-Cut"), "what shows"
    assert names["VAE"] == ("soft.safetensors", "hard.pt")


def test_all_else_that_a_comfyui_has_is_told() -> None:
    fake = FakeComfyUI()
    fake.start()
    try:
        names = names_at(ComfyUIEntry(url=fake.url))
    finally:
        fake.stop()
    assert "euler_ancestral" in names["sampler"]
    assert "karras" in names["schedule"]
    assert names["LoRA"] == ("styles/ink.safetensors", "grain.safetensors")
    assert {"4x-UltraSharp.pth", "lanczos"} <= set(names["upscaler"])


def test_what_a_server_does_not_tell_is_left_out() -> None:
    with FakeWebUI() as fake:
        fake.old = True
        assert "schedule" not in names_at(WebUIEntry(url=fake.url))
        fake.die()
        assert names_at(WebUIEntry(url=fake.url)) == {}


async def test_all_servers_that_a_job_found_silent_are_withdrawn() -> None:
    with FakeWebUI() as one, FakeWebUI() as two:
        entries = [WebUIEntry(url=one.url), WebUIEntry(url=two.url)]
        offers = ServerOffers(entries, lambda: None, print, print)
        await offers._look()
        assert not offers.withdrawn
        offers.silent("webui", f"Nothing answers at {one.url} .")
        assert not offers.withdrawn.tasks, "the other one has it"
        offers.silent("webui", f"Nothing answers at {one.url} . Nothing answers at {two.url} .")
        assert "webui" in offers.withdrawn.tasks
        await offers._look()
        assert not offers.withdrawn
