"""What the doors for clients are made of."""

from __future__ import annotations

from dataclasses import dataclass

from corral.api.streams import Streams
from corral.controller.auth.access import Access
from corral.controller.auth.vault import Vault
from corral.controller.auth.worker_admin import WorkerAdmin
from corral.controller.files.artifact_index import ArtifactIndex
from corral.controller.files.artifacts import Artifacts
from corral.controller.files.assets import Assets
from corral.controller.files.blobs import Blobs
from corral.controller.history.listing import Listing
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
from corral.core.limits import InputLimits


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
