"""An ended job once more: as a new one, for nothing leaves an end state."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from corral.core.errors import InvalidJob
from corral.core.images.pipeline import WITH, task_of
from corral.core.job import MAX_DURATION_S, Job, JobId, PipelineCall

MAX_NAME = 512


class Retry(Struct, frozen=True):
    """What is asked for; all else stays as it was."""

    user: str | None = None
    """Whose the new job is; None: whose it was."""
    is_owners: bool = False
    """The home's own token asks for it: what that one let the first job read, this one reads."""
    worker: str = ""
    """The only one that may have it."""
    apart: bool = False
    """It does not count for the first one's batch."""
    from_start: bool = False
    """It does not go on from the last checkpoint."""
    duration_s: Annotated[float, Meta(ge=1, le=MAX_DURATION_S)] | None = None
    retries: Annotated[int, Meta(ge=0, le=100)] | None = None
    memory_gb: Annotated[float, Meta(ge=0, le=100_000)] | None = None
    backend: Literal["", "webui", "comfyui", "diffusers", "sketch"] = ""
    """The kind that renders its images."""

    @classmethod
    def asked(cls, **given: Any) -> Retry:
        """Checked, or an InvalidJob that says what is wrong."""
        try:
            found = msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            said = f"{error}".replace("`", "").replace("$.", "")
            raise InvalidJob(f"What the retry is given is not possible: {said}.") from None
        if len(found.worker) > MAX_NAME or not found.worker.isprintable():
            raise InvalidJob(f"A worker's name has up to {MAX_NAME} printable characters.")
        return found

    def of(self, job: JobId, document: Job, checkpoint: str) -> Job:
        again = replace(document, retry_of=job, key="", checkpoint=checkpoint)
        if self.user is not None:
            # Code of another user does not enter the warm processes of whoever runs it again.
            fresh = document.fresh or self.user != document.user
            again = replace(again, user=self.user, on_behalf=False, fresh=fresh)
        if self.apart:
            again = replace(again, batch="")
        if self.duration_s is not None:
            again = replace(again, duration_s=self.duration_s)
        if self.retries is not None:
            again = replace(again, retries=self.retries)
        needs = document.needs
        if needs.owned and not self.is_owners:
            needs = replace(needs, owned=False)
        if self.worker:
            needs = replace(needs, worker=self.worker)
        if self.memory_gb is not None:
            needs = replace(needs, memory_gb=self.memory_gb)
        if self.backend:
            if not isinstance(document.work, PipelineCall):
                raise InvalidJob("It makes no images; only an image job has a backend.")
            record = document.work.record
            if task_of(record).partition(WITH)[0] != self.backend:
                record = replace(record, backend=self.backend)
                again = replace(again, work=PipelineCall(record))
                needs = replace(needs, task=task_of(record))
        return replace(again, needs=needs)
