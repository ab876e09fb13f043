"""The result of a job, as its journal names it."""

from __future__ import annotations

from corral.controller.store import Store
from corral.core.errors import BlobNotFound
from corral.core.events import JobSucceeded
from corral.core.job import Blob, JobId, State


def result_of(store: Store, job: JobId) -> Blob:
    """What it returned; small ones carry their bytes."""
    head = store.head(job)
    for _, fact in store.newest(head) if head.state is State.SUCCEEDED else ():
        if isinstance(fact, JobSucceeded):
            if fact.result is not None:
                return fact.result
            break
    raise BlobNotFound(f"Job {job} has no result (yet). `corral show {job}` says more.", job_id=job)
