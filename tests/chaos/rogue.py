"""A worker that lies: it enrols like any other, registers with attempts of others as its own, and
tells of them what was never true. Nothing that it says may count."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cloudpickle
from websockets.exceptions import WebSocketException

from corral.cli.workers.join import enrol
from corral.core.errors import CorralError
from corral.core.job import Blob, Failure
from corral.core.worker import Capabilities
from corral.joining import trust
from corral.joining.invitation import parse
from corral.protocol import messages as wire
from corral.runtime.pipeline.blocking_websocket import BlockingWebSocket
from tests.network.machines import Cluster

FORGED = "forged"
ATTEMPTS = range(1, 5)
NOTHING = Capabilities(cpus=0, memory_gb=0, workloads=())
"""It is given nothing, so whatever it tells is about somebody else's work."""


class Rogue:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._card: dict[str, Any] = {}

    def lie(self, jobs: Sequence[str], seed: float) -> None:
        """One visit. A controller that is away or throws it out has done nothing wrong."""
        with contextlib.suppress(CorralError, OSError, WebSocketException, ValueError, KeyError):
            self._visit(jobs, random.Random(seed))

    def _visit(self, jobs: Sequence[str], dice: random.Random) -> None:
        controller = self._cluster.controller
        pem = Path(str(controller.card["certificate"])).read_text()
        if not self._card:
            with self._cluster.client() as client:
                told = parse(client.admin.invite_worker())
            self._card = enrol(told.url, told.token, "rogue", pem)
        claims = tuple((job, attempt) for job in jobs for attempt in ATTEMPTS)
        url = controller.url.replace("http", "ws", 1) + "/worker"
        headers = {"Authorization": f"Bearer {self._card['credential']}"}
        dialled = BlockingWebSocket(
            url, additional_headers=headers, ssl=trust.context(pem), open_timeout=10
        )
        with contextlib.closing(dialled) as socket:
            register = wire.WorkerRegister(
                worker_id=self._card["worker_id"],
                software_version="0",
                runner_protocol=wire.VERSION,
                capabilities=NOTHING,
                attempts=claims,
            )
            socket.send(wire.encode([register]))
            socket.recv(5)
            lies = [lie for claim in claims for lie in _lies(*claim)]
            for lie in dice.sample(lies, min(len(lies), 200)):
                socket.send(wire.encode([lie]))
            if dice.random() < 0.5:
                socket.send(wire.encode([wire.WorkerGoodbye(reason="it was a lie")]))


def _lies(job: str, attempt: int) -> list[wire.FromWorker]:
    at = time.time()
    blob = Blob.of(cloudpickle.dumps(FORGED))
    failure = Failure(code="exception", message=FORGED)
    return [
        wire.JobStarted(job=job, attempt=attempt, at=at),
        wire.JobOutput(job=job, attempt=attempt, stream="stdout", text=f"{FORGED}\n"),
        wire.JobCompleted(job=job, attempt=attempt, at=at, seconds=1.0, digest="", result=blob),
        wire.JobFailed(job=job, attempt=attempt, at=at, seconds=1.0, digest="", failure=failure),
        wire.JobReturned(job=job, attempt=attempt, reason=FORGED),
    ]
