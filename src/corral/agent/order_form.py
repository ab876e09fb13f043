"""The orders of this worker, filled in: what all of them say alike, and what each attempt adds."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from corral.agent.attempts.attempt import HeldAttempt
from corral.agent.connection import DEFAULT_GRACE_S, ControllerAddress
from corral.agent.files.downloads import Ticket
from corral.agent.runners.orders import encode_line
from corral.agent.runners.pool import CERTIFICATE
from corral.core.images.backends import Entry, WebUIEntry
from corral.core.job import Workload
from corral.core.worker import GPU
from corral.protocol.messages import WorkerWelcome
from corral.runtime.order import Endpoint, Order, Renderer

BEYOND_GRACE_S = 90.0
"""For so long beyond the grace attempts try to fetch and store: whoever may still come back in
time has not failed."""


class OrderForm:
    def __init__(self) -> None:
        self.endpoint = Endpoint(url="")
        self.renderer = Renderer(worker="", driver="", backends=[])

    def line(self, attempt: HeldAttempt, work_dir: str) -> bytes:
        dispatch = attempt.dispatch
        order: Order[Any] = {
            "job": dispatch.job,
            "attempt": dispatch.attempt,
            "document": dispatch.document,
            "endpoint": self.endpoint,
            "token": dispatch.token,
            "work_dir": work_dir,
            "correlation_id": dispatch.correlation_id,
        }
        if dispatch.checkpoint:
            order["checkpoint"] = dispatch.checkpoint
        if attempt.inputs:
            order["inputs"] = attempt.inputs
        if attempt.workload is Workload.PIPELINE:
            order["renderer"] = self.renderer
        return encode_line(order)

    def ticket(self, attempt: HeldAttempt) -> Ticket:
        """For what the agent fetches on its behalf."""
        endpoint = self.endpoint
        certificate = endpoint.get("certificate", "")
        return Ticket(endpoint["url"], certificate, *attempt.key, attempt.dispatch.token)


def renderer_of(
    worker: str, gpus: Iterable[GPU], backends: Iterable[Entry], turns: str
) -> Renderer:
    """Runners take turns at a WebUI, in a folder that all of them may write to."""
    return Renderer(
        worker=worker,
        driver=", ".join(sorted({gpu.driver for gpu in gpus if gpu.driver})),
        backends=[
            {**entry.options(), **({"folder": turns} if isinstance(entry, WebUIEntry) else {})}
            for entry in backends
        ],
    )


def endpoint_of(
    address: ControllerAddress, welcome: WorkerWelcome | None, home: Path, artifacts: str
) -> Endpoint:
    """How attempts reach the controller: as this agent does, unless it names another place."""
    endpoint = Endpoint(url=address.root)
    if welcome is not None:
        endpoint["url"] = welcome.url or address.root
        if place := _artifacts_go(welcome.artifacts, artifacts):
            endpoint["artifacts"] = place
        if welcome.grace_s > DEFAULT_GRACE_S:
            endpoint["patience_s"] = welcome.grace_s + BEYOND_GRACE_S
    if address.certificate:
        path = home / CERTIFICATE
        certificate = address.certificate.encode("ascii")
        if not path.exists() or path.read_bytes() != certificate:
            path.write_bytes(certificate)  # in place: what may read it was told this file
        endpoint["certificate"] = str(path)
    return endpoint


def _artifacts_go(where: str, folder: str) -> str:
    """To the bucket, or into a folder that jobs may write to; otherwise to the controller."""
    if where != "root":
        return where
    return folder if folder and os.access(folder, os.W_OK) else ""
