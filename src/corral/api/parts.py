"""What the doors for clients are made of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from corral.controller.auth.tokens import Access
from corral.controller.auth.vault import Vault
from corral.controller.auth.worker_admin import WorkerAdmin
from corral.controller.files.artifacts import ArtifactIndex, Artifacts
from corral.controller.files.assets import Assets
from corral.controller.files.blobs import Blobs
from corral.controller.history.listing import Listing
from corral.controller.history.retention import Retention
from corral.controller.images.learning import Learnings
from corral.controller.images.learning_runs import LearningRuns
from corral.controller.images.plans import Plans
from corral.controller.loop import Loop
from corral.controller.output.feed import Feed
from corral.controller.output.loop_turns import LoopTurns
from corral.controller.output.text import OutputText
from corral.controller.queue import Queue
from corral.controller.recovery.backup import Backups
from corral.controller.store import Store
from corral.core.errors import TooManyStreams
from corral.core.limits import InputLimits


class Streams:
    """How many answers may stay open at once, over gRPC and REST together."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.open = 0

    def check(self) -> None:
        if self.open >= self._limit:
            raise TooManyStreams(
                f"{self.open:,} streams are open, as many as limits.streams allows. Close some, or "
                "ask for what you need without following it."
            )

    @contextmanager
    def one(self) -> Iterator[None]:
        self.check()
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1


@dataclass(frozen=True)
class Parts:
    store: Store
    blobs: Blobs
    assets: Assets
    artifacts: Artifacts
    artifact_index: ArtifactIndex
    feed: Feed
    queue: Queue
    loop: Loop
    listing: Listing
    output: OutputText
    access: Access
    herd: WorkerAdmin
    streams: Streams
    turns: LoopTurns
    limits: InputLimits
    package_limit: int
    plans: Plans
    version: str
    started_at: float
    learnings: Learnings
    learning_runs: LearningRuns
    vault: Vault
    backups: Backups
    retention: Retention
