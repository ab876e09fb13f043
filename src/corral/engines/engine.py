"""The port between the controller and the ways to reach workers: five verbs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Protocol

from msgspec import Struct

from corral.core.events import EngineReport
from corral.core.job import JobId, Needs, QueueClass
from corral.core.worker import Worker


class Attempt(Struct, frozen=True, gc=False):
    """One try of a job on one worker: all that an engine needs to start it."""

    job: JobId
    number: int
    worker: str
    document: bytes
    digest: str
    token: str
    needs: Needs
    above_vram_gb: float = 0.0
    duration_s: float = 3600.0
    queue_class: QueueClass = QueueClass.BATCH
    priority: int = 0
    checkpoint: str = ""
    correlation_id: str = ""
    secrets: dict[str, str] = {}
    """Values of the secrets that the job names."""

    def __repr__(self) -> str:
        return f"Attempt(job={self.job!r}, number={self.number!r}, worker={self.worker!r}, …)"


class Engine(Protocol):
    """An engine only starts, stops and reports; it decides nothing and concludes nothing."""

    name: str

    def workers(self) -> Sequence[Worker]:
        """Every worker it knows, also those that are asleep."""
        ...

    def start(self, attempt: Attempt) -> None:
        """Takes it and returns at once: from this moment it is among `running`. Starting twice is
        the same as starting once. What becomes of it comes by `events`."""
        ...

    async def stop(
        self, job: JobId, attempt: int, *, grace_s: float, unbegun: bool = False
    ) -> None:
        """Asks for an end; the proof is the AttemptExited that follows. Unknown attempts: no-op.
        `unbegun` asks for it back, as AttemptReturned, and leaves alone what has begun."""
        ...

    async def running(self) -> Collection[tuple[JobId, int]]:
        """What it has now: the truth after a restart."""
        ...

    def events(self) -> AsyncIterator[Sequence[EngineReport]]:
        """What it saw, in batches that arrived together. Asking for the next batch says that the
        one before is on disk: only then may the engine forget it."""
        ...
