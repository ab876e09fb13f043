"""Results and artifacts of a job, as its journal names them."""

from __future__ import annotations

from corral.controller.store import Store
from corral.core.errors import BlobNotFound
from corral.core.events import ArtifactStored, JobSucceeded
from corral.core.job import Blob, JobId


def result_of(store: Store, job: JobId) -> Blob:
    """What it returned; small ones carry their bytes."""
    for record in reversed(store.history(store.head(job))):
        fact = record.fact()
        if isinstance(fact, JobSucceeded) and fact.result is not None:
            return fact.result
    raise BlobNotFound(f"Job {job} has no result (yet). `corral show {job}` says more.", job_id=job)


def artifact_of(store: Store, job: JobId, name: str) -> ArtifactStored:
    """The artifact that was stored last under this name."""
    for record in reversed(store.history(store.head(job))):
        fact = record.fact()
        if isinstance(fact, ArtifactStored) and fact.name == name:
            return fact
    raise BlobNotFound(
        f"Job {job} has nothing named {name[:200]!r}. `corral show {job}` lists its artifacts.",
        job_id=job,
    )
