"""What an operator asks of a controller: its queue as a whole, and the tokens of its clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from corral.contract import corral_pb2 as pb
from corral.contract import views
from corral.contract.read_views import read
from corral.core.errors import InvalidRequest
from corral.sdk.transport.connection import Connection


class AsyncAdministration:
    """`client.admin`. Looking at the queue needs the role read; everything else needs admin."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def queue(self) -> views.QueueView:
        """How many jobs wait by class, and whether the queue is paused."""
        return await self._queue("GetQueue")

    async def pause(self) -> views.QueueView:
        """Starts nothing new, also after a restart; what workers hold goes on."""
        return await self._queue("PauseQueue")

    async def resume(self) -> views.QueueView:
        return await self._queue("ResumeQueue")

    async def _queue(self, method: str) -> views.QueueView:
        view: views.QueueView = read(await self._connection.call(method, pb.QueueRequest()))
        return view

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
        view: views.WorkerView = read(await self._connection.call("ChangeWorker", request))
        return view

    async def revoke_worker(self, worker: str) -> views.WorkerView:
        """Cuts a worker off at once; what it was running goes elsewhere."""
        request = pb.RevokeWorkerRequest(worker=worker)
        reply = await self._connection.call("RevokeWorker", request, again=False)
        view: views.WorkerView = read(reply)
        return view

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
        reply = await self._connection.call("Invite", request)
        view: views.InvitationView = read(reply)
        return view

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
        view: views.TokenView = read(
            await self._connection.call("RevokeToken", request, again=False)
        )
        return view


class Administration:
    """What an operator asks. See AsyncAdministration for what each method does."""

    def __init__(self, administration: AsyncAdministration, call: Callable[..., Any]) -> None:
        self._administration, self._call = administration, call

    def queue(self) -> views.QueueView:
        found: views.QueueView = self._call(self._administration.queue())
        return found

    def pause(self) -> views.QueueView:
        found: views.QueueView = self._call(self._administration.pause())
        return found

    def resume(self) -> views.QueueView:
        found: views.QueueView = self._call(self._administration.resume())
        return found

    def change_worker(
        self,
        worker: str,
        *,
        name: str | None = None,
        draining: bool | None = None,
        labels: Iterable[str] | None = None,
    ) -> views.WorkerView:
        changing = self._administration.change_worker(
            worker, name=name, draining=draining, labels=labels
        )
        found: views.WorkerView = self._call(changing)
        return found

    def revoke_worker(self, worker: str) -> views.WorkerView:
        found: views.WorkerView = self._call(self._administration.revoke_worker(worker))
        return found

    def invite_worker(self, *, expires_in: float = 0.0, uses: int = 0, renew: bool = False) -> str:
        return self.invite_machine(expires_in=expires_in, uses=uses, renew=renew).invitation

    def invite_machine(
        self, *, expires_in: float = 0.0, uses: int = 0, renew: bool = False
    ) -> views.InvitationView:
        inviting = self._administration.invite_machine(
            expires_in=expires_in, uses=uses, renew=renew
        )
        found: views.InvitationView = self._call(inviting)
        return found

    def invite_client(self, name: str, role: str = "submit", expires_in: float = 0.0) -> str:
        found: str = self._call(self._administration.invite_client(name, role, expires_in))
        return found

    def join_requests(self) -> list[views.JoinRequestView]:
        found: list[views.JoinRequestView] = self._call(self._administration.join_requests())
        return found

    def confirm_join(self, code: str) -> str:
        found: str = self._call(self._administration.confirm_join(code))
        return found

    def create_token(
        self, name: str, role: str, *, expires_in: float = 0.0
    ) -> tuple[str, views.TokenView]:
        making = self._administration.create_token(name, role, expires_in=expires_in)
        found: tuple[str, views.TokenView] = self._call(making)
        return found

    def tokens(self) -> list[views.TokenView]:
        found: list[views.TokenView] = self._call(self._administration.tokens())
        return found

    def revoke_token(self, name: str) -> views.TokenView:
        found: views.TokenView = self._call(self._administration.revoke_token(name))
        return found
