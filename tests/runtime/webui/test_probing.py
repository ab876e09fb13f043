"""What an agent learns of a server before it offers it."""

from __future__ import annotations

import pytest

from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.webui import probe
from tests.fakes.webui import FakeWebUI
from tests.fakes.webui_parts import TITLES, digest_of


def test_models_stages_and_versions(fake: FakeWebUI) -> None:
    found = probe({"type": "webui", "url": fake.url}, thorough=True)
    assert {model.name: model.sha256 for model in found.models} == {
        name: digest_of(title)
        for name, title in zip(("alpha", "beta", "gamma", "refine"), TITLES, strict=True)
    }
    assert "Euler" in found.samplers
    assert "Karras" in found.schedules
    assert "Lanczos" in found.upscalers
    assert found.stages == ("txt2img", "img2img", "adetailer", "upscale")
    assert found.versions["webui"] == "v1.10.1"


def test_a_server_without_adetailer(fake: FakeWebUI) -> None:
    fake.detailer = False
    assert probe({"url": fake.url}).stages == ("txt2img", "img2img", "upscale")


def test_a_server_that_is_not_there(fake: FakeWebUI) -> None:
    fake.die()
    with pytest.raises(StageFailed) as caught:
        probe({"url": fake.url})
    assert caught.value.code == "backend_down"


def test_a_server_from_before_schedules(fake: FakeWebUI) -> None:
    fake.old = True
    found = probe({"url": fake.url})
    assert found.schedules == ()
    assert "DPM++ 2M Karras" in found.samplers
