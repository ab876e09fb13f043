"""The attempts' door: an order to fetch, and messages to post, for a process that runs one attempt
by itself. What is posted is answered when it is on disk, and the answer says whether to end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import msgspec
from fastapi import Request, Response
from msgspec import Raw

from corral.api import incoming
from corral.api.auth import bearer
from corral.api.rest.answers import body_of
from corral.controller.auth.tokens import MESSAGES, AttemptTokens
from corral.controller.auth.vault import Vault
from corral.controller.store import Store
from corral.core.errors import Conflict, CorralError, Unavailable
from corral.core.job import Head
from corral.core.limits import InputLimits as Limits
from corral.engines.engine import Engine
from corral.engines.posted import Mailbox, Posted
from corral.protocol.attempt_messages import MOST_BYTES, AttemptMessages
from corral.runtime.standalone.ticket import AttemptOrder


class AttemptDoor:
    def __init__(
        self,
        store: Store,
        tokens: AttemptTokens,
        vault: Vault,
        *,
        current: Callable[[str, int], Awaitable[Head]],
        engines: Mapping[str, Engine],
        limits: Limits,
        output_limit: int,
        artifacts: str,
    ) -> None:
        self._store, self._tokens, self._vault = store, tokens, vault
        self._current, self._engines = current, engines
        self._limits, self._output_limit, self._artifacts = limits, output_limit, artifacts

    async def order(self, request: Request, job: str, attempt: int) -> Response:
        self._check(request, job, attempt)
        head = await self._current(job, attempt)
        self._mailbox_of(head)
        document, digest = self._store.document(head)
        order = AttemptOrder(
            job=job,
            attempt=attempt,
            document=Raw(document),
            digest=digest,
            token=self._tokens.issue(job, attempt),
            needs=head.shape.needs,
            duration_s=head.given.duration_s,
            checkpoint=head.checkpoint,
            correlation_id=head.correlation_id,
            output_limit=self._output_limit,
            artifacts="bucket" if self._artifacts == "bucket" else "",
            secrets=self._vault.values(head.secrets) if head.secrets else {},
        )
        return _json(order)

    async def messages(self, request: Request, job: str, attempt: int) -> Response:
        self._check(request, job, attempt)
        mailbox = self._mailbox_of(await self._current(job, attempt))
        body = await incoming.whole(request, self._limits, MOST_BYTES)
        batch: AttemptMessages = body_of(body, AttemptMessages)
        head = await self._current(job, attempt)  # it may have ended while the bytes came
        answer = await mailbox.post(job, attempt, head.worker, batch)
        if not batch.messages and answer.cancel is None:
            try:
                await self._current(job, attempt)  # or while it waited
            except CorralError:
                mailbox.forget(job, attempt)
                raise
        return _json(answer)

    def _check(self, request: Request, job: str, attempt: int) -> None:
        token = bearer(request.headers.get("authorization"))
        self._tokens.check(token, job, attempt, MESSAGES)

    def _mailbox_of(self, head: Head) -> Mailbox:
        engine = self._engines.get(head.engine)
        if engine is None:  # as a worker that is away: its attempt goes on, and asks again
            told = f"The engine {head.engine!r} of job {head.id} is not among `engines` here."
            raise Unavailable(told, job_id=head.id)
        if isinstance(engine, Posted):
            return engine.mailbox
        told = f"Attempt {head.attempt} of job {head.id} reports through its worker."
        raise Conflict(told, job_id=head.id)


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
