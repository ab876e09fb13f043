"""What the doors for clients are made of."""

from __future__ import annotations

from dataclasses import dataclass

from corral.api.streams import Streams
from corral.controller.access import Access
from corral.controller.artifact_index import ArtifactIndex
from corral.controller.artifacts import Artifacts
from corral.controller.assets import Assets
from corral.controller.backup import Backups
from corral.controller.blobs import Blobs
from corral.controller.feed import Feed
from corral.controller.herd import Herd
from corral.controller.learning import Learnings
from corral.controller.learning_runs import LearningRuns
from corral.controller.listing import Listing
from corral.controller.loop import Loop
from corral.controller.loop_turns import LoopTurns
from corral.controller.output_text import OutputText
from corral.controller.plans import Plans
from corral.controller.queue import Queue
from corral.controller.store import Store
from corral.controller.vault import Vault
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
    herd: Herd
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
