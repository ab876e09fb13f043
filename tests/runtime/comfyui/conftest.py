"""A fake ComfyUI, and a backend in front of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from corral.runtime.pipeline.comfyui.backend import ComfyUI
from tests.fakes.comfyui import FakeComfyUI


@pytest.fixture
def server() -> Iterator[FakeComfyUI]:
    fake = FakeComfyUI()
    fake.start()
    yield fake
    if fake.hold is not None:
        fake.hold.released.set()
    fake.stop()


@pytest.fixture
def backend(server: FakeComfyUI) -> Iterator[ComfyUI]:
    backend = ComfyUI(url=server.url, patience_s=5.0)
    yield backend
    backend.close()
