"""A served orchestrator, and clients that know it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from corral.sdk.aio import AsyncClient
from corral.sdk.client import Client
from tests.sdk.orchestrator import TOKEN, Orchestrator, Served


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "home") as started:
        yield started


@pytest.fixture
def orchestrator(served: Served) -> Orchestrator:
    return served.orchestrator


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    with Client(served.address, TOKEN) as made:
        yield made


@pytest.fixture
async def aclient(served: Served) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(served.address, TOKEN) as made:
        yield made
