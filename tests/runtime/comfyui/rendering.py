"""Renders that a test looks at."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec
from PIL.Image import Image

from corral.core.images.pipeline import Record, Stage, Txt2Img
from corral.runtime.pipeline.backend import Rendered
from corral.runtime.pipeline.comfyui.backend import ComfyUI
from tests.fakes.comfyui import FakeComfyUI, Hold

RECORD = Record(
    positive="a castle",
    negative="blurry",
    model="sdxl_1.0",
    sampler="DPM++ 2M",
    scheduler="Karras",
    steps=4,
    width=128,
    height=64,
    seed=7,
)


class Told:
    def __init__(self) -> None:
        self.said: list[tuple[float, str]] = []
        self.stop = threading.Event()
        self.on_progress: Callable[[], None] = lambda: None

    def progress(self, fraction: float, message: str = "") -> None:
        self.said.append((fraction, message))
        self.on_progress()

    def cancelled(self) -> bool:
        return self.stop.is_set()


def render(
    backend: ComfyUI,
    record: Record = RECORD,
    stage: Stage | None = None,
    images: tuple[Image, ...] = (),
    told: Told | None = None,
) -> Rendered:
    return backend.render(stage or Txt2Img(), record, images, told or Told())


def changed(**fields: Any) -> Record:
    return msgspec.structs.replace(RECORD, **fields)


class Rendering(threading.Thread):
    """A render that a test looks at from outside."""

    def __init__(self, backend: ComfyUI, record: Record = RECORD) -> None:
        super().__init__(daemon=True)
        self.told = Told()
        self.rendered: Rendered | None = None
        self.error: BaseException | None = None
        self._backend, self._record = backend, record

    def run(self) -> None:
        try:
            self.rendered = render(self._backend, self._record, told=self.told)
        except BaseException as error:
            self.error = error

    def outcome(self) -> Rendered:
        self.join(30)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        assert self.rendered is not None
        return self.rendered


def held(server: FakeComfyUI, step: int = 2) -> Hold:
    server.hold = Hold(step)
    return server.hold


def only_prompt(server: FakeComfyUI) -> dict[str, Any]:
    (one,) = server.submitted
    prompt: dict[str, Any] = one["prompt"]
    return prompt


def nodes_of(graph: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [node["inputs"] for node in graph.values() if node["class_type"] == kind]
