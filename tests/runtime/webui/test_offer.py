"""What an agent learns of a server before it offers it."""

from __future__ import annotations

import pytest

from corral.core.images.backends import WebUIEntry
from corral.runtime.pipeline.backend import StageFailed
from corral.runtime.pipeline.kinds import offer_of
from tests.fakes.webui import FakeWebUI
from tests.fakes.webui_parts import TITLES, digest_of


def test_models_and_stages(fake: FakeWebUI) -> None:
    stages, models = offer_of(WebUIEntry(url=fake.url).options())

    digests = [digest_of(title) for title in TITLES]
    assert models == {f"{t} [{d[:10]}]": d for t, d in zip(TITLES, digests, strict=True)}
    assert stages == ("txt2img", "img2img", "adetailer", "upscale")


def test_a_server_without_adetailer(fake: FakeWebUI) -> None:
    fake.detailer = False

    assert offer_of(WebUIEntry(url=fake.url).options())[0] == ("txt2img", "img2img", "upscale")


def test_a_server_that_is_not_there(fake: FakeWebUI) -> None:
    fake.die()
    with pytest.raises(StageFailed) as caught:
        offer_of(WebUIEntry(url=fake.url).options())
    assert caught.value.code == "backend_down"
