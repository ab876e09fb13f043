"""Attempts that ended here and whose end the controller has not yet confirmed to have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from corral.agent.attempt import Attempt
from corral.agent.narration import Narration
from corral.core.job import Blob, Failure, JobId
from corral.protocol.messages import JobCompleted, JobDispatch, JobFailed, Message

log = structlog.get_logger("corral.agent.results")


class Results:
    """Kept, and said again after every reconnect, until they are received."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send, self.narration = send, Narration()
        self._kept: dict[tuple[JobId, int], JobCompleted | JobFailed] = {}
        self._emptied = asyncio.Event()

    def all(self) -> dict[tuple[JobId, int], JobCompleted | JobFailed]:
        return self._kept

    def completed(self, attempt: Attempt, result: Blob | None) -> None:
        dispatch = attempt.dispatch
        seconds = time.monotonic() - attempt.since
        message = JobCompleted(
            dispatch.job, dispatch.attempt, time.time(), seconds, dispatch.digest, result
        )
        self._kept[attempt.key] = message
        self._send(message)
        self.narration.succeeded(dispatch, seconds)

    def failed(self, attempt: Attempt, failure: Failure) -> None:
        seconds = time.monotonic() - attempt.since if attempt.since else 0.0
        self.refused(attempt.dispatch, failure, seconds)

    def refused(self, dispatch: JobDispatch, failure: Failure, seconds: float = 0.0) -> None:
        """Failed, perhaps before anything was made of it."""
        message = JobFailed(
            dispatch.job, dispatch.attempt, time.time(), seconds, dispatch.digest, failure
        )
        self._kept[dispatch.job, dispatch.attempt] = message
        self._send(message)
        log.info(
            "attempt_failed",
            job=dispatch.job,
            attempt=dispatch.attempt,
            code=failure.code,
            error=failure.message[:500],
            seconds=round(seconds, 3),
            correlation_id=dispatch.correlation_id,
        )

    def say_again(self, job: JobId, attempt: int) -> bool:
        """Whether this attempt has ended here before."""
        message = self._kept.get((job, attempt))
        if message is not None:
            self._send(message)
        return message is not None

    def received(self, job: JobId, attempt: int) -> None:
        self._kept.pop((job, attempt), None)
        if not self._kept:
            self._emptied.set()

    async def until_received(self) -> None:
        while self._kept:
            self._emptied.clear()
            await self._emptied.wait()
