"""An image is as large whatever renders it: as a WebUI has it, which asks nobody."""

from __future__ import annotations

import pytest
from PIL import Image

from corral.core.images.pipeline import Record, Upscale
from corral.runtime.pipeline.comfyui import graphs
from corral.runtime.pipeline.sketch import Sketch
from corral.runtime.pipeline.webui import payloads
from tests.fakes.webui_parts import grown
from tests.runtime.webui.rendering import render

SIZES = [((64, 64), 2.0), ((100, 50), 1.5), ((320, 200), 1.15), ((33, 20), 2.5), ((640, 96), 1.1)]


@pytest.mark.parametrize(("size", "factor"), SIZES)
def test_sizes_agree_between_backends(size: tuple[int, int], factor: float) -> None:
    stage = Upscale(factor=factor)
    record = Record(positive="", stages=(stage,))
    graph = graphs.upscale(stage, record, "a.png", size, lambda kind, field, wanted: wanted)
    (scaled,) = (one for one in graph.nodes.values() if one["class_type"] == "ImageScale")
    image = Image.new("RGB", size, (9, 9, 9))
    found = {
        "webui": payloads.grown(size, factor),
        "comfyui": (scaled["inputs"]["width"], scaled["inputs"]["height"]),
        "sketch": render(Sketch(), record, stage, image).images[0].size,  # type: ignore[arg-type]
    }
    assert found == dict.fromkeys(found, grown(size, factor))
