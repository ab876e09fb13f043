"""What these tests render with: a telling, a record, and ways to see what was sent."""

from __future__ import annotations

import threading
from collections.abc import Callable

import httpx
import pytest
from PIL import Image as Images
from PIL.Image import Image

from corral.core.images.pipeline import Record, Stage
from corral.runtime.pipeline.backend import Rendered, StageFailed
from corral.runtime.pipeline.webui.backend import WebUI
from tests.eventually import PATIENCE_S
from tests.fakes.webui import FakeWebUI
from tests.fakes.webui_parts import Json

RECORD = Record(
    positive="a castle",
    negative="blurry",
    model="alpha",
    sampler="euler",
    scheduler="karras",
    steps=4,
    width=64,
    height=64,
    seed=7,
)


class Telling:
    """What the runner gives a backend; `cancel` makes it ask for the end."""

    def __init__(self) -> None:
        self.told: list[tuple[float, str]] = []
        self.cancel = threading.Event()

    def progress(self, fraction: float, message: str = "") -> None:
        self.told.append((fraction, message))

    def cancelled(self) -> bool:
        return self.cancel.is_set()


Open = Callable[..., WebUI]


def render(
    webui: WebUI, record: Record = RECORD, stage: Stage | None = None, *images: Image
) -> Rendered:
    return webui.render(stage or record.stages[0], record, images, Telling())


def refused(
    webui: WebUI, record: Record = RECORD, stage: Stage | None = None, *images: Image
) -> StageFailed:
    with pytest.raises(StageFailed) as caught:
        render(webui, record, stage, *images)
    return caught.value


def sent(fake: FakeWebUI, path: str) -> list[Json]:
    return [body for name, body in fake.requests if name == path and body]


def raw(fake: FakeWebUI, path: str, body: Json | None = None) -> Json:
    answer = httpx.post(f"{fake.url}/sdapi/v1/{path}", json=body or {}, timeout=PATIENCE_S)
    found: Json = answer.json()
    return found


def square(side: int = 64) -> Image:
    return Images.new("RGB", (side, side), (200, 40, 60))


class Background:
    """A render on a thread of its own."""

    def __init__(self, webui: WebUI, record: Record = RECORD) -> None:
        self.tell = Telling()
        self.rendered: Rendered | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(webui, record))
        self._thread.start()

    def _run(self, webui: WebUI, record: Record) -> None:
        try:
            self.rendered = webui.render(record.stages[0], record, (), self.tell)
        except BaseException as error:
            self.error = error

    def wait(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
