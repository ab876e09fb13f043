"""What operators call: workers, joining, the queue, tokens, health, secrets, backups."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from corral.api.rpc.guard import Calls, answers, streams
from corral.api.views import filled, invitation_view, queue_view, worker_page, worker_view
from corral.contract import corral_pb2 as pb
from corral.core.access import Caller


class OperatingCalls(Calls):
    @answers
    async def ListWorkers(self, request: pb.ListWorkersRequest) -> pb.ListWorkersReply:
        return worker_page(self._parts, request.after)

    @answers
    async def ChangeWorker(self, request: pb.ChangeWorkerRequest) -> pb.WorkerView:
        has = request.HasField
        changed = await self._parts.herd.change(
            request.worker,
            new_name=request.name if has("name") else None,
            draining=request.draining if has("draining") else None,
            labels=list(request.labels.labels) if has("labels") else None,
        )
        return worker_view(self._parts, changed)

    @answers
    async def RevokeWorker(self, request: pb.RevokeWorkerRequest) -> pb.WorkerView:
        return worker_view(self._parts, await self._parts.herd.revoke(request.worker))

    @answers
    async def Invite(self, request: pb.InviteRequest) -> pb.InviteReply:
        return await invitation_view(self._parts.herd, request)

    @answers
    async def ListJoinRequests(
        self, request: pb.ListJoinRequestsRequest
    ) -> pb.ListJoinRequestsReply:
        requests = self._parts.herd.requests
        asked = requests.pending()
        found = (filled(pb.JoinRequestView, one, age_s=requests.age(one)) for one in asked)
        return pb.ListJoinRequestsReply(requests=found)

    @answers
    async def ConfirmJoin(self, request: pb.ConfirmJoinRequest) -> pb.ConfirmJoinReply:
        return pb.ConfirmJoinReply(name=(await self._parts.herd.confirm(request.code)).name)

    # --- the queue, tokens, health ---

    @answers
    async def GetQueue(self, request: pb.QueueRequest) -> pb.QueueView:
        return queue_view(self._parts)

    @answers
    async def PauseQueue(self, request: pb.QueueRequest, caller: Caller) -> pb.QueueView:
        await self._parts.loop.hold(True, by=caller.name)
        return queue_view(self._parts)

    @answers
    async def ResumeQueue(self, request: pb.QueueRequest, caller: Caller) -> pb.QueueView:
        await self._parts.loop.hold(False, by=caller.name)
        return queue_view(self._parts)

    @answers
    async def CreateToken(self, request: pb.CreateTokenRequest) -> pb.CreateTokenReply:
        token, kept = await self._parts.access.create(
            request.name, request.role, request.expires_in
        )
        return pb.CreateTokenReply(token=token, view=filled(pb.TokenView, kept))

    @answers
    async def ListTokens(self, request: pb.ListTokensRequest) -> pb.ListTokensReply:
        tokens = (filled(pb.TokenView, one) for one in self._parts.access.tokens())
        return pb.ListTokensReply(tokens=tokens)

    @answers
    async def RevokeToken(self, request: pb.RevokeTokenRequest) -> pb.TokenView:
        return filled(pb.TokenView, await self._parts.access.revoke(request.name))

    @answers
    async def HealthCheck(self, request: pb.HealthRequest) -> pb.HealthReply:
        world = self._parts.store.world
        workers = self._parts.loop.workers()
        status, reason = self._parts.queue.condition()
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
    async def SetSecret(self, request: pb.SetSecretRequest) -> pb.SecretView:
        set_at = await self._parts.vault.set(request.name, request.value)
        return pb.SecretView(name=request.name, set_at=set_at)

    @answers
    async def ListSecrets(self, request: pb.ListSecretsRequest) -> pb.ListSecretsReply:
        listed = [pb.SecretView(name=name, set_at=at) for name, at in self._parts.vault.listed()]
        return pb.ListSecretsReply(secrets=listed)

    @answers
    async def RemoveSecret(self, request: pb.RemoveSecretRequest) -> pb.SecretView:
        set_at = await self._parts.vault.remove(request.name)
        return pb.SecretView(name=request.name, set_at=set_at)

    @streams
    async def Backup(self, request: pb.BackupRequest) -> AsyncIterator[pb.BackupChunk]:
        async with contextlib.aclosing(self._parts.backups.stream()) as pieces:
            async for piece in pieces:
                yield pb.BackupChunk(data=piece.data, done=piece.done, total=piece.total)
