"""A backend with tiny models that stays open from case to case: a plugin of pytest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from PIL import Image as Images
from PIL.Image import Image

from corral.core.images.pipeline import Record, Stage, Txt2Img
from corral.runtime.pipeline.backend import Rendered, StageFailed
from corral.runtime.pipeline.diffusers.backend import Diffusers
from corral.runtime.pipeline.images import pixel_sha256
from corral.runtime.pipeline.kinds import open_backend
from tests.in_torch import making
from tests.in_torch.telling import Tell

CASTLE = Record(
    positive="a castle", negative="blurry", model="tiny", width=64, height=64, steps=2, seed=5
)
PLAIN = Txt2Img()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("models")
    making.make(folder / "tiny")
    making.make(folder / "other", seed=1)
    os.environ["CORRAL_MODEL_PATHS"] = str(folder)
    yield folder
    del os.environ["CORRAL_MODEL_PATHS"]


@pytest.fixture(scope="session")
def backend(models: Path) -> Iterator[Diffusers]:
    found = open_backend({"type": "diffusers", "device": "", "dtype": "", "models": 1})
    assert isinstance(found, Diffusers)
    yield found
    found.close()


def render(
    backend: Diffusers,
    record: Record = CASTLE,
    stage: Stage = PLAIN,
    images: tuple[Image, ...] = (),
    tell: Tell | None = None,
) -> Rendered:
    return backend.render(stage, record, images, tell or Tell())


def pixels(backend: Diffusers, **changed: Any) -> str:
    return pixel_sha256(render(backend, replace(CASTLE, **changed)).images[0])


def refused(backend: Diffusers, record: Record = CASTLE, stage: Stage = PLAIN) -> StageFailed:
    with pytest.raises(StageFailed) as failed:
        render(backend, record, stage, (Images.new("RGB", (64, 64)),))
    return failed.value
