"""One try of a job, for whoever runs it: engines are given this, and the wire carries it."""

from __future__ import annotations

from msgspec import Raw, Struct

from corral.core.job import JobId, Needs, QueueClass


class Assignment(Struct, frozen=True, gc=False, omit_defaults=True):
    job: JobId
    attempt: int
    """Its number: the fence against late and doubled messages."""
    document: Raw
    """As it was submitted, word for word."""
    digest: str
    token: str
    """Good for this attempt's transfers alone."""
    needs: Needs
    above_vram_gb: float = 0.0
    duration_s: float = 3600.0
    queue_class: QueueClass = QueueClass.BATCH
    priority: int = 0
    checkpoint: str = ""
    correlation_id: str = ""
    """For the log and the job's own environment."""
    secrets: dict[str, str] = {}
    """Values of the secrets that the job names: for its process alone, never for a log."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(job={self.job!r}, attempt={self.attempt!r}, …)"
