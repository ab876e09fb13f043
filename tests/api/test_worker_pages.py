"""The list of workers fits, however many there are and whatever they say of themselves."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import pytest

import corral
from corral.api.views import PAGE_BYTES, PAGE_WORKERS
from corral.contract import corral_pb2 as pb
from corral.contract.service import MAX_MESSAGE_BYTES, stub
from corral.core.worker import NAMES_BYTES, Capabilities, ImageServer, Model
from corral.protocol import messages as wire
from corral.sdk.transport.connection import Connection
from corral.sdk.transport.connection import Door as Address
from tests.api.rest import Rest
from tests.api.worker_door import Card, Door
from tests.live import CORRAL, LiveController

LIARS, PLAIN = 12, 3
WORD = "説"
"""Three bytes, and one character."""


def boastful(card: Card) -> wire.WorkerRegister:
    """As much as one frame of a registration may hold."""
    names = [f"{WORD * 100}{n}" for n in range(NAMES_BYTES // 310)]
    return card.register(
        capabilities=Capabilities(
            cpus=1, memory_gb=1, model_paths=tuple(WORD * 4_096 for _ in range(256))
        ),
        models=tuple(map(Model, names)),
        models_loaded=tuple(names),
        servers=tuple(ImageServer("webui", WORD * 2_048) for _ in range(256)),
    )


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveController]:
    with (
        LiveController(
            tmp_path_factory.mktemp("crowd"), environ={"CORRAL_WORKER_ENABLED": "false"}
        ) as controller,
        ExitStack() as doors,
    ):
        for n in range(LIARS):
            card = Card(controller, f"liar-{n}")
            door = doors.enter_context(Door(controller, card.credential))
            register = boastful(card)
            assert len(wire.encode([register])) * LIARS > MAX_MESSAGE_BYTES
            door.joined(register)
        for n in range(PLAIN):
            card = Card(controller, f"plain-{n}")
            doors.enter_context(Door(controller, card.credential)).joined(card.register())
        yield controller


def test_everybody_is_listed(crowded: LiveController) -> None:
    names = {*(f"liar-{n}" for n in range(LIARS)), *(f"plain-{n}" for n in range(PLAIN))}
    with corral.Client(crowded.address, crowded.token) as client:
        told = client.workers()
    assert [one.name for one in told] == sorted(names)
    assert all(len(one.model_paths) == 256 for one in told if one.name.startswith("liar"))
    assert {one["name"] for one in Rest(crowded)("GET", "/workers").json} == names
    command = [CORRAL, "workers"]
    shown = subprocess.run(command, env=crowded.environ, capture_output=True, check=True).stdout
    assert all(name.encode() in shown for name in names)


def test_no_page_is_much_larger_than_one_worker(crowded: LiveController) -> None:
    channel = Connection(Address(crowded.address, crowded.token)).open(grpc)
    seen: list[str] = []
    with channel:
        more = True
        while more:
            request = pb.ListWorkersRequest(after=seen[-1] if seen else "")
            metadata = (("authorization", f"Bearer {crowded.token}"),)
            reply = stub(channel).ListWorkers(request, metadata=metadata)
            assert 0 < len(reply.workers) <= PAGE_WORKERS
            assert sum(one.ByteSize() for one in reply.workers[:-1]) < PAGE_BYTES
            seen += [one.id for one in reply.workers]
            more = reply.more
    assert len(seen) == len(set(seen)) == LIARS + PLAIN
