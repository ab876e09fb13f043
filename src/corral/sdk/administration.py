"""What an operator asks of a controller: its queue, workers, clients' tokens, and secrets."""

from __future__ import annotations

from collections.abc import Iterable

from corral.contract import corral_pb2 as pb
from corral.contract import views
from corral.contract.read_views import read
from corral.core.errors import InvalidRequest
from corral.sdk.bridge import Bridged, bridged
from corral.sdk.transport.connection import ClientCalls


class AsyncAdministration(ClientCalls):
    """`client.admin`. Looking at the queue needs the role read; everything else needs admin."""

    async def queue(self) -> views.QueueView:
        """How many jobs wait by class, and whether the queue is paused."""
        return await self._queue("GetQueue")

    async def pause(self) -> views.QueueView:
        """Starts nothing new, also after a restart; what workers hold goes on."""
        return await self._queue("PauseQueue")

    async def resume(self) -> views.QueueView:
        return await self._queue("ResumeQueue")

    async def _queue(self, method: str) -> views.QueueView:
        return await self._connection.ask(views.QueueView, method, pb.QueueRequest())

    async def change_worker(
        self,
        worker: str,
        *,
        name: str | None = None,
        draining: bool | None = None,
        labels: Iterable[str] | None = None,
    ) -> views.WorkerView:
        """Drains or resumes a worker, gives it another name or other labels; what is left out
        stays. `labels` are all that you add to those the worker tells of itself."""
        request = pb.ChangeWorkerRequest(worker=worker, name=name, draining=draining)
        if labels is not None:
            request.labels.labels.extend(labels)
            request.labels.SetInParent()
        return await self._connection.ask(views.WorkerView, "ChangeWorker", request)

    async def revoke_worker(self, worker: str) -> views.WorkerView:
        """Cuts a worker off at once; what it was running goes elsewhere."""
        request = pb.RevokeWorkerRequest(worker=worker)
        return await self._connection.ask(views.WorkerView, "RevokeWorker", request, again=False)

    async def invite_worker(
        self, *, expires_in: float = 0.0, uses: int = 0, renew: bool = False
    ) -> str:
        """The string for `corral worker join`, good for so many seconds (a day without) and so many
        machines (any number without). `renew` voids what was given out before."""
        told = await self.invite_machine(expires_in=expires_in, uses=uses, renew=renew)
        return told.invitation

    async def invite_machine(
        self, *, expires_in: float = 0.0, uses: int = 0, renew: bool = False
    ) -> views.InvitationView:
        """The same, with the lines that make a bare machine a worker."""
        if not 0 <= uses < 2**32:
            raise InvalidRequest(f"An invitation is for some machines; got uses={uses}.")
        request = pb.InviteRequest(expires_in=expires_in, uses=uses, renew=renew)
        return await self._connection.ask(views.InvitationView, "Invite", request)

    async def invite_client(self, name: str, role: str = "submit", expires_in: float = 0.0) -> str:
        """The string for `corral login`, with a new token of this name in it."""
        request = pb.InviteRequest(client=name, role=role, expires_in=expires_in)
        reply = await self._connection.call("Invite", request, again=False)
        return str(reply.invitation)

    async def join_requests(self) -> list[views.JoinRequestView]:
        """Machines that found the controller by themselves and wait to be confirmed."""
        request = pb.ListJoinRequestsRequest()
        reply = await self._connection.call("ListJoinRequests", request)
        return [read(one) for one in reply.requests]

    async def confirm_join(self, code: str) -> str:
        """Lets the machine that shows this code be a worker; its name."""
        request = pb.ConfirmJoinRequest(code=code)
        return str((await self._connection.call("ConfirmJoin", request, again=False)).name)

    async def create_token(
        self, name: str, role: str, *, expires_in: float = 0.0
    ) -> tuple[str, views.TokenView]:
        """A token, shown this once, and what is kept of it. `expires_in` is in seconds."""
        request = pb.CreateTokenRequest(name=name, role=role, expires_in=expires_in)
        reply = await self._connection.call("CreateToken", request, again=False)
        return reply.token, read(reply.view)

    async def tokens(self) -> list[views.TokenView]:
        reply = await self._connection.call("ListTokens", pb.ListTokensRequest())
        return [read(token) for token in reply.tokens]

    async def revoke_token(self, name: str) -> views.TokenView:
        request = pb.RevokeTokenRequest(name=name)
        return await self._connection.ask(views.TokenView, "RevokeToken", request, again=False)


class Administration(Bridged[AsyncAdministration]):
    """`client.admin` of a Client."""

    queue = bridged(AsyncAdministration.queue)
    pause = bridged(AsyncAdministration.pause)
    resume = bridged(AsyncAdministration.resume)
    change_worker = bridged(AsyncAdministration.change_worker)
    revoke_worker = bridged(AsyncAdministration.revoke_worker)
    invite_worker = bridged(AsyncAdministration.invite_worker)
    invite_machine = bridged(AsyncAdministration.invite_machine)
    invite_client = bridged(AsyncAdministration.invite_client)
    join_requests = bridged(AsyncAdministration.join_requests)
    confirm_join = bridged(AsyncAdministration.confirm_join)
    create_token = bridged(AsyncAdministration.create_token)
    tokens = bridged(AsyncAdministration.tokens)
    revoke_token = bridged(AsyncAdministration.revoke_token)


class AsyncSecrets(ClientCalls):
    """`client.secrets` of an AsyncClient."""

    async def set(self, name: str, value: str) -> views.SecretView:
        """Keeps the value under this name, in the place of an older one."""
        request = pb.SetSecretRequest(name=name, value=value)
        return await self._connection.ask(views.SecretView, "SetSecret", request)

    async def list(self) -> list[views.SecretView]:
        """Names and when each was set; never values."""
        reply = await self._connection.call("ListSecrets", pb.ListSecretsRequest())
        return [read(one) for one in reply.secrets]

    async def remove(self, name: str) -> views.SecretView:
        request = pb.RemoveSecretRequest(name=name)
        return await self._connection.ask(views.SecretView, "RemoveSecret", request)


class Secrets(Bridged[AsyncSecrets]):
    """`client.secrets` of a Client."""

    set = bridged(AsyncSecrets.set)
    list = bridged(AsyncSecrets.list)
    remove = bridged(AsyncSecrets.remove)
