"""A client of the shared controller, and a second controller that declares GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import corral
from tests.api.rest import Rest
from tests.live import LiveController


@pytest.fixture(scope="session")
def client(controller: LiveController) -> Iterator[corral.Client]:
    with corral.Client(controller.address, controller.token) as made:
        yield made


@pytest.fixture(scope="session")
def with_gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[corral.Client]:
    """A machine that declares two GPUs, takes no whole lot of memory, and stops at once."""
    home: Path = tmp_path_factory.mktemp("gpus")
    (home / "corral.yaml").write_text(
        "cancel_grace_s: 1\nshutdown_grace_s: 1\noutput_limit: 200000\n"
        "worker:\n  cpus: 4\n  labels: [site=home]\n  gpus:\n"
        "    - {name: RTX 3090, vram_gb: 24}\n    - {name: RTX 3060, vram_gb: 12}\n"
    )
    with (
        LiveController(home) as live,
        corral.Client(live.address, live.token) as made,
    ):
        yield made


@pytest.fixture
def rest(controller: LiveController) -> Rest:
    return Rest(controller)
