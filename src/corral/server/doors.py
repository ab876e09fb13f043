"""The doors of a controller, wired: gRPC, the local socket, the workers' socket, and REST."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp

from corral import __version__
from corral.api.auth import OnlyOurHosts
from corral.api.correlation import Correlated
from corral.api.first_answers import FirstAnswers
from corral.api.local_door import LocalDoor
from corral.api.parts import Parts, Streams
from corral.api.rpc import Orchestrator
from corral.api.workers.worker_socket import WorkerSocket
from corral.controller.auth.roster import Roster
from corral.controller.auth.worker_admin import WorkerAdmin
from corral.controller.files.artifacts import ArtifactIndex
from corral.controller.images.learning_runs import LearningRuns
from corral.controller.images.plans import Plans
from corral.controller.images.presets import PresetFiles
from corral.controller.output.text import OutputText
from corral.controller.recovery.backup import Backups
from corral.core.limits import InputLimits
from corral.engines.engine import Dialled
from corral.home import Home
from corral.server.circle import Circle
from corral.server.listening import LOCAL_SHARE, own_names
from corral.server.storage import Storage
from corral.settings import Settings


class Doors:
    def __init__(
        self,
        settings: Settings,
        home: Home,
        limits: InputLimits,
        storage: Storage,
        circle: Circle,
        herd: WorkerAdmin,
        roster: Roster,
        *,
        health: Callable[[], Awaitable[tuple[int, dict[str, object]]]],
        descriptors: int,
        started_at: float,
        any_address: bool,
    ) -> None:
        self._settings, self._limits = settings, limits
        self._storage, self._circle = storage, circle
        self._engines = engines = circle.loop.fleet.engines
        self._health, self._started_at = health, started_at
        presets = PresetFiles(home.presets)
        plans = Plans(circle.queue, circle.loop, circle.learnings.paces, presets)
        self.learning_runs = LearningRuns(
            plans, circle.learnings, storage.store, home.learning / "runs"
        )
        self._parts = self._made_of(home, herd, plans)
        self.orchestrator = Orchestrator(self._parts)
        self.local = LocalDoor(
            self.orchestrator.submit, storage.access, limits, int(descriptors * LOCAL_SHARE)
        )
        dialled = next((one for one in engines.values() if isinstance(one, Dialled)), None)
        self.has_workers_socket = dialled is not None
        workers: WorkerSocket | None = None
        if dialled is not None:
            workers = WorkerSocket(
                dialled,
                roster,
                heartbeat_s=settings.heartbeat_s,
                grace_s=settings.grace_s,
                artifacts=storage.artifacts.where,
            )
        self.first_answers = FirstAnswers(workers, health, self._rest, circle.turns)
        own = own_names(settings)
        ours = OnlyOurHosts(self.first_answers, own, any_address=any_address)
        self.app: ASGIApp = Correlated(ours)

    def _made_of(self, home: Home, herd: WorkerAdmin, plans: Plans) -> Parts:
        storage, circle = self._storage, self._circle
        return Parts(
            store=storage.store,
            blobs=storage.blobs,
            assets=storage.assets,
            artifacts=storage.artifacts,
            artifact_index=ArtifactIndex(storage.store),
            feed=circle.feed,
            queue=circle.queue,
            loop=circle.loop,
            listing=storage.listing,
            output=OutputText(storage.spool),
            access=storage.access,
            herd=herd,
            streams=Streams(self._limits.streams),
            turns=circle.turns,
            limits=self._limits,
            package_limit=self._settings.package_limit,
            plans=plans,
            version=__version__,
            started_at=self._started_at,
            learnings=circle.learnings,
            learning_runs=self.learning_runs,
            vault=storage.vault,
            backups=Backups(home, circle.retention, __version__),
            retention=circle.retention,
        )

    def _rest(self) -> ASGIApp:
        from corral.api.attempt_door import AttemptDoor
        from corral.api.http import application
        from corral.api.metrics import Metrics

        settings, storage, circle = self._settings, self._storage, self._circle
        attempts = AttemptDoor(
            self._parts,
            storage.tokens,
            self._engines,
            artifact_limit=settings.artifact_limit,
        )
        return application(
            attempts=attempts.routes(),
            health=self._health,
            parts=self._parts,
            metrics=Metrics(self._parts, circle.statistics, storage.spool).routes(),
        )
