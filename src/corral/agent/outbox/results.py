"""Attempts that ended here and whose end the controller has not yet confirmed to have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from corral.agent.attempts.attempt import HeldAttempt
from corral.agent.attempts.attempt_log import AttemptLog
from corral.agent.outbox.kept_results import Ended, KeptResults
from corral.core.job import Blob, Failure, JobId
from corral.protocol.messages import (
    JobCompleted,
    JobDispatch,
    JobFailed,
    JobReturned,
    Message,
)

log = structlog.get_logger("corral.agent.outbox.results")

Key = tuple[JobId, int]


class Results:
    """Kept, and said again after every reconnect, until they are received."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send, self.narration = send, AttemptLog()
        self._kept: dict[Key, Ended] = {}
        self._emptied = asyncio.Event()
        self._disk: KeptResults | None = None
        self._saved: set[Key] = set()
        self._saving: asyncio.Task[None] | None = None
        self._oldest: Key | None = None
        """At the last beat."""
        self.offline = True
        """Nobody hears what ends now: it goes to the disk too."""

    # --- on disk -------------------------------------------------------------------------------

    def keep_in(self, disk: KeptResults) -> int:
        """From now on; how many results an agent before us left there."""
        self._disk = disk
        self._kept = {(one.job, one.attempt): one for one in disk.read()}
        self._saved = set(self._kept)
        return len(self._saved)

    def beat(self) -> None:
        """What was not received for a whole beat may never be: the way there is slow, or dead."""
        oldest = next(iter(self._kept), None)
        if oldest is not None and oldest == self._oldest:
            self.save()
        self._oldest = oldest

    def save(self) -> None:
        """Whatever is not on disk yet goes there, in the background."""
        if self._saving is None and self._disk is not None and self._kept.keys() - self._saved:
            self._saving = asyncio.create_task(self._save(self._disk))

    async def _save(self, disk: KeptResults) -> None:
        unsaved: list[Key] = []
        try:
            while unsaved := [key for key in self._kept if key not in self._saved]:
                self._saved.update(unsaved)
                wanted = [self._kept[key] for key in unsaved]
                written = await asyncio.to_thread(disk.add, wanted)
                if written < len(wanted):
                    log.warning("results_not_kept", count=len(wanted) - written)
        except OSError as error:
            self._saved.difference_update(unsaved)
            log.warning("results_not_kept", error=str(error))
        finally:
            self._saving = None
            self._clear_disk()

    def _clear_disk(self) -> None:
        """What is left in the file once nobody waits for any of it would only be said again."""
        if self._disk is not None and self._saving is None and not self._saved & self._kept.keys():
            self._saved.clear()
            self._disk.clear()

    def forget(self) -> None:
        """Nobody will ever want to hear of them."""
        self._kept.clear()
        self._saved.clear()
        if self._disk is not None:
            self._disk.clear()
        self._disk = None

    async def close(self) -> None:
        if self.offline:
            self.save()
        if self._saving is not None:
            await self._saving

    # --- what ends -----------------------------------------------------------------------------

    def _end(self, message: Ended) -> None:
        self._kept[message.job, message.attempt] = message
        self._send(message)
        if self.offline:
            self.save()

    def all(self) -> dict[Key, Ended]:
        return self._kept

    def completed(self, attempt: HeldAttempt, result: Blob | None) -> None:
        dispatch = attempt.dispatch
        seconds = time.monotonic() - attempt.since
        message = JobCompleted(
            dispatch.job,
            dispatch.attempt,
            time.time(),
            seconds,
            dispatch.digest,
            result,
            attempt.told,
        )
        self._end(message)
        self.narration.succeeded(dispatch, seconds)

    def failed(self, attempt: HeldAttempt, failure: Failure) -> None:
        seconds = time.monotonic() - attempt.since if attempt.since else 0.0
        self.refused(attempt.dispatch, failure, seconds, attempt.told)

    def refused(
        self, dispatch: JobDispatch, failure: Failure, seconds: float = 0.0, told: int = 0
    ) -> None:
        """Failed, perhaps before anything was made of it."""
        message = JobFailed(
            dispatch.job, dispatch.attempt, time.time(), seconds, dispatch.digest, failure, told
        )
        self._end(message)
        log.info(
            "attempt_failed",
            job=dispatch.job,
            attempt=dispatch.attempt,
            code=failure.code,
            error=failure.message[:500],
            seconds=round(seconds, 3),
            correlation_id=dispatch.correlation_id,
        )

    def returned(self, job: JobId, attempt: int, reason: str) -> None:
        """It goes back without having run."""
        self._end(JobReturned(job, attempt, reason=reason))

    def say_again(self, job: JobId, attempt: int) -> bool:
        """Whether this attempt has ended here before."""
        message = self._kept.get((job, attempt))
        if message is not None:
            self._send(message)
        return message is not None

    def received(self, job: JobId, attempt: int) -> None:
        self._kept.pop((job, attempt), None)
        if self._saved:
            self._clear_disk()
        if not self._kept:
            self._emptied.set()

    async def until_received(self) -> None:
        while self._kept:
            self._emptied.clear()
            await self._emptied.wait()
