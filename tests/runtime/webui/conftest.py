"""A fake server for each test, and backends in front of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.runtime.pipeline.webui.backend import WebUI
from tests.fakes.webui import FakeWebUI
from tests.runtime.webui.rendering import Open


@pytest.fixture
def fake() -> Iterator[FakeWebUI]:
    with FakeWebUI() as fake:
        yield fake


@pytest.fixture
def opened(fake: FakeWebUI, tmp_path: Path) -> Iterator[Open]:
    made: list[WebUI] = []

    def open_one(**options: Any) -> WebUI:
        options = {"url": fake.url, "folder": str(tmp_path), **options}
        made.append(WebUI(**options))
        return made[-1]

    yield open_one
    for one in made:
        one.close()


@pytest.fixture
def webui(opened: Open) -> WebUI:
    return opened()
