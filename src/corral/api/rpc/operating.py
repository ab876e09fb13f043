"""For whoever operates the whole: the queue, tokens, health, secrets, backups."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from corral.api.rpc.guard import Calls, Context, answers, streams
from corral.api.views import (
    queue_view,
    token_view,
)
from corral.contract import corral_pb2 as pb
from corral.controller.status.condition import condition


class OperatingCalls(Calls):
    @answers
    async def GetQueue(  # noqa: N802
        self, request: pb.QueueRequest, context: Context
    ) -> pb.QueueView:
        return queue_view(self._parts.store.world, self._parts.loop.pause)

    @answers
    async def PauseQueue(  # noqa: N802
        self, request: pb.QueueRequest, context: Context
    ) -> pb.QueueView:
        await self._parts.loop.hold(True, by=self.caller(context).name)
        return queue_view(self._parts.store.world, self._parts.loop.pause)

    @answers
    async def ResumeQueue(  # noqa: N802
        self, request: pb.QueueRequest, context: Context
    ) -> pb.QueueView:
        await self._parts.loop.hold(False, by=self.caller(context).name)
        return queue_view(self._parts.store.world, self._parts.loop.pause)

    @answers
    async def CreateToken(  # noqa: N802
        self, request: pb.CreateTokenRequest, context: Context
    ) -> pb.CreateTokenReply:
        token, kept = await self._parts.access.create(
            request.name, request.role, request.expires_in
        )
        return pb.CreateTokenReply(token=token, view=token_view(kept))

    @answers
    async def ListTokens(  # noqa: N802
        self, request: pb.ListTokensRequest, context: Context
    ) -> pb.ListTokensReply:
        return pb.ListTokensReply(tokens=map(token_view, self._parts.access.tokens()))

    @answers
    async def RevokeToken(  # noqa: N802
        self, request: pb.RevokeTokenRequest, context: Context
    ) -> pb.TokenView:
        return token_view(await self._parts.access.revoke(request.name))

    @answers
    async def HealthCheck(  # noqa: N802
        self, request: pb.HealthRequest, context: Context
    ) -> pb.HealthReply:
        world = self._parts.store.world
        workers = self._parts.loop.workers()
        status, reason = condition(self._parts.queue, self._parts.store, self._parts.loop)
        return pb.HealthReply(
            status=status,
            reason=reason,
            version=self._parts.version,
            workers=sum(worker.connected for worker in workers),
            queued=sum(world.waiting.values()),
            running=sum(len(held) for held in world.held.values()),
            started_at=self._parts.started_at,
        )

    # --- secrets: values go in and never come out. All three are for the operator alone.

    @answers
    async def SetSecret(  # noqa: N802
        self, request: pb.SetSecretRequest, context: Context
    ) -> pb.SecretView:
        set_at = await self._parts.vault.set(request.name, request.value)
        return pb.SecretView(name=request.name, set_at=set_at)

    @answers
    async def ListSecrets(  # noqa: N802
        self, request: pb.ListSecretsRequest, context: Context
    ) -> pb.ListSecretsReply:
        listed = [pb.SecretView(name=name, set_at=at) for name, at in self._parts.vault.listed()]
        return pb.ListSecretsReply(secrets=listed)

    @answers
    async def RemoveSecret(  # noqa: N802
        self, request: pb.RemoveSecretRequest, context: Context
    ) -> pb.SecretView:
        set_at = await self._parts.vault.remove(request.name)
        return pb.SecretView(name=request.name, set_at=set_at)

    @streams
    async def Backup(  # noqa: N802
        self, request: pb.BackupRequest, context: Context
    ) -> AsyncIterator[pb.BackupChunk]:
        async with contextlib.aclosing(self._parts.backups.stream()) as pieces:
            async for piece in pieces:
                yield pb.BackupChunk(data=piece.data, done=piece.done, total=piece.total)
