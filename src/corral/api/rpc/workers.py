"""Workers, and how machines become some."""

from __future__ import annotations

from corral.api.rpc.guard import Calls, Context, answers
from corral.api.views import worker_views
from corral.api.workers.pages import page
from corral.contract import corral_pb2 as pb
from corral.core.access import Role
from corral.core.worker import Worker


class WorkerCalls(Calls):
    @answers
    async def ListWorkers(  # noqa: N802
        self, request: pb.ListWorkersRequest, context: Context
    ) -> pb.ListWorkersReply:
        return page(self._parts, request.after)

    @answers
    async def ChangeWorker(  # noqa: N802
        self, request: pb.ChangeWorkerRequest, context: Context
    ) -> pb.WorkerView:
        has = request.HasField
        changed = await self._parts.herd.change(
            request.worker,
            new_name=request.name if has("name") else None,
            draining=request.draining if has("draining") else None,
            labels=list(request.labels.labels) if has("labels") else None,
        )
        return self._worker(changed)

    @answers
    async def RevokeWorker(  # noqa: N802
        self, request: pb.RevokeWorkerRequest, context: Context
    ) -> pb.WorkerView:
        return self._worker(await self._parts.herd.revoke(request.worker))

    def _worker(self, worker: Worker) -> pb.WorkerView:
        return worker_views(self._parts.store.world.seats([worker]))[0]

    @answers
    async def Invite(  # noqa: N802
        self, request: pb.InviteRequest, context: Context
    ) -> pb.InviteReply:
        if request.client:
            client = await self._parts.herd.invite_client(
                request.client, request.role or Role.SUBMIT, request.expires_in
            )
            return pb.InviteReply(invitation=client.text())
        worker, expires_at = await self._parts.herd.invite_worker(
            request.expires_in, request.uses, renew=request.renew
        )
        pin = self._parts.herd.pin()
        return pb.InviteReply(
            invitation=worker.text(),
            shell=worker.shell(pin),
            powershell=worker.powershell(pin),
            expires_at=expires_at,
        )

    @answers
    async def ListJoinRequests(  # noqa: N802
        self, request: pb.ListJoinRequestsRequest, context: Context
    ) -> pb.ListJoinRequestsReply:
        requests = self._parts.herd.requests
        return pb.ListJoinRequestsReply(
            requests=[
                pb.JoinRequestView(
                    name=one.name, address=one.address, code=one.code, age_s=requests.age(one)
                )
                for one in requests.pending()
            ]
        )

    @answers
    async def ConfirmJoin(  # noqa: N802
        self, request: pb.ConfirmJoinRequest, context: Context
    ) -> pb.ConfirmJoinReply:
        return pb.ConfirmJoinReply(name=(await self._parts.herd.confirm(request.code)).name)
