"""What this worker says of itself: all of it when it registers, what changes with heartbeats."""

from __future__ import annotations

import secrets

from msgspec.structs import replace

from corral import __version__
from corral.agent.connection import ControllerAddress
from corral.agent.parts import AgentParts
from corral.core.model import MOST_MODELS, Model, kept
from corral.core.worker import ImageServer
from corral.protocol.messages import VERSION, WorkerHeartbeat, WorkerRegister
from corral.settings import WorkerSettings


class Introduction:
    def __init__(self, settings: WorkerSettings, parts: AgentParts) -> None:
        self._settings, self._parts = settings, parts
        self._incarnation = secrets.token_hex(8)
        self._models_told: tuple[Model, ...] = ()
        self._tasks_told: tuple[str, ...] = ()
        self._servers_told: tuple[ImageServer, ...] = ()

    @property
    def is_outdated(self) -> bool:
        """Other stages than we introduced ourselves with: heartbeats do not tell of those."""
        return self._parts.offers.tasks != self._tasks_told

    def register(self, address: ControllerAddress) -> WorkerRegister:
        parts = self._parts
        can, models = parts.capabilities, self._models()
        names = tuple(model.name for model in models)
        tasks = tuple(dict.fromkeys(parts.offers.tasks))
        self._models_told, self._tasks_told = models, parts.offers.tasks
        self._servers_told = parts.offers.servers
        return WorkerRegister(
            worker_id=address.worker_id,
            software_version=__version__,
            runner_protocol=VERSION,
            capabilities=replace(can, models_present=names, task_types=tasks),
            name=self._settings.name or address.name,
            gpu_name=can.gpus[0].name if can.gpus else "",
            vram_gb=max((gpu.vram_gb for gpu in can.gpus), default=0.0),
            supported_models=names,
            attempts=parts.ledger.attempts(),
            incarnation=self._incarnation,
            leftovers=parts.leftovers,
            models=models,
            models_loaded=parts.runners.models(),
            readings=parts.gpus.readings,
            servers=self._servers_told,
        )

    def heartbeat(self, *, leaving: bool) -> WorkerHeartbeat:
        parts, models = self._parts, self._models()
        ledger, servers = parts.ledger, parts.offers.servers
        ledger.results.beat()
        told = WorkerHeartbeat(
            load=ledger.roll.load(),
            running=ledger.running,
            waiting=ledger.waiting,
            warm=parts.runners.idle,
            readings=parts.gpus.readings,
            models=None if models == self._models_told else models,
            models_loaded=parts.runners.models(),
            leaving=leaving,
            servers=None if servers == self._servers_told else servers,
        )
        self._models_told, self._servers_told = models, servers
        return told

    def _models(self) -> tuple[Model, ...]:
        """Those of files first: their digests are known."""
        files, served = self._parts.models.models, self._parts.offers.models
        if served:
            known = {model.name for model in files}
            files = (*files, *(model for model in served if model.name not in known))[:MOST_MODELS]
        return files[: kept(model.name for model in files)]
