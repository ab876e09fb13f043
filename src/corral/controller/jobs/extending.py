"""More time for jobs: journaled, and told to whoever runs the attempt."""

from __future__ import annotations

import math
import time

import structlog

from corral.controller.engines.fleet import Fleet
from corral.controller.store import Store
from corral.core.errors import Conflict, InvalidJob
from corral.core.events import JobExtended
from corral.core.job import MAX_DURATION_S, Head, JobId, State
from corral.core.text import span

log = structlog.get_logger()


class Extending:
    def __init__(self, store: Store, fleet: Fleet) -> None:
        self._store, self._fleet = store, fleet

    async def extend(self, job: JobId, by_s: float) -> Head:
        if not (math.isfinite(by_s) and by_s >= 1):
            raise InvalidJob(f"A job is given a second or more; got {by_s:g} s.", job_id=job)
        while True:
            head = self._store.head(job)
            self._check(head, by_s)
            try:
                (change,) = await self._store.append([JobExtended(job, time.time(), by_s)])
            except Conflict:
                continue  # it moved on meanwhile: look again
            log.info("job_extended", job=job, by_s=by_s, duration_s=change.head.duration_s)
            if change.head.state.held:
                self._fleet.extend(change.head)
            return change.head

    def _check(self, head: Head, by_s: float) -> None:
        if head.state.ended:
            raise Conflict(
                f"Job {head.id} has already {head.state}; `corral retry {head.id} --duration 12h` "
                "runs it again with more time, from its last checkpoint.",
                job_id=head.id,
            )
        if head.state is State.STOPPING:
            raise Conflict(f"Job {head.id} is being cancelled.", job_id=head.id)
        if head.duration_s + by_s > MAX_DURATION_S:
            raise InvalidJob(
                f"A job runs at most {span(MAX_DURATION_S)}, and this one has "
                f"{span(head.duration_s)} of them.",
                job_id=head.id,
            )
        if head.state.held and not self._fleet.extends(head):
            worker = self._store.world.names.get(head.worker, head.worker)
            raise Conflict(
                f"Worker {worker} cannot be told that a running job has more time: its Corral is "
                f"older. Job {head.id} ends as it was submitted; `corral retry {head.id} "
                "--duration 12h` then goes on from its last checkpoint.",
                job_id=head.id,
            )
