"""The herd: inviting workers and clients, and what the operator does with workers."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from corral.controller.auth.join_requests import JoinRequests
from corral.controller.auth.roster import DAY_S, Enrolled, Roster
from corral.controller.auth.tailnet import TOKEN, Tailnet
from corral.controller.auth.tokens import Access
from corral.controller.loop import Loop
from corral.controller.store import Store
from corral.core.errors import Conflict, InvalidRequest, WorkerNotFound
from corral.core.worker import Capabilities, Worker
from corral.engines.engine import Steered
from corral.joining import trust
from corral.joining.invitation import Invitation

log = structlog.get_logger()


class WorkerAdmin:
    def __init__(
        self,
        roster: Roster,
        store: Store,
        loop: Loop,
        access: Access,
        address: str,
    ) -> None:
        self._roster, self._store = roster, store
        self._loop, self._access = loop, access
        self._address = address
        self._ports = (0, 0)
        self._sha256 = self._pin = self.certificate = ""
        self._requests: JoinRequests | None = None
        self.tailnet: Tailnet | None = None

    def open(self, port: int, grpc_port: int, certificate: str) -> None:
        """Where others reach us; without a certificate nobody does."""
        self._ports = (port, grpc_port)
        self.certificate = certificate
        if certificate:
            self._sha256 = trust.fingerprint(certificate)
            self._pin = trust.public_key_pin(certificate)
            self._roster.url = self._invitation("").url

    def move(self, address: str) -> None:
        """This machine has another best address than before."""
        self._address = address
        if self.is_open():
            self._roster.url = self._invitation("").url

    def moved(self) -> str:
        """What to do about workers that were told another address than ours; empty if none was.
        They dial the one they know, and nobody else could tell them."""
        told = self._roster.told_elsewhere()
        if not told:
            return ""
        names = ", ".join(one.name for one in told[:5]) + ", …" * (len(told) > 5)
        now = (
            f"is now at {self._roster.url}"
            if self.is_open()
            else "now listens on this machine alone"
        )
        return (
            f"The workers {names} know this controller by {told[0].told}, and it {now}. Start it "
            "as before (--host, --port, `advertise`), or run on each of them `corral worker join` "
            "with the string of `corral invite`: they stay who they are."
        )

    # --- inviting ---

    def is_open(self) -> bool:
        return bool(self._sha256)

    async def invite_worker(
        self, for_s: float = 0.0, uses: int = 0, *, renew: bool = False
    ) -> tuple[Invitation, float]:
        """What machines join with, and until when: by default any number of them for a day; where a
        tailnet vouches for them, for ever and without a secret. `renew` voids earlier ones."""
        self._check_open()
        plain = not (for_s or uses or renew)
        if self.tailnet is not None and plain and (ours := await self.tailnet.address()):
            return Invitation(ours, *self._ports, TOKEN, self._sha256), 0.0
        token, issued = await self._roster.invite(for_s or DAY_S, uses or None, renew=renew)
        return self._invitation(token), issued.expires_at

    def mark(self) -> str:
        """Tells us from other controllers, for machines that look around."""
        return self._sha256[:6]

    def pin(self) -> str:
        """By which a bare machine knows our key."""
        self._check_open()
        return self._pin

    async def invite_client(self, name: str, role: str, expires_in: float = 0.0) -> Invitation:
        """What a client logs in with: a new token of its own."""
        self._check_open()
        token, _ = await self._access.create(name, role, expires_in)
        return self._invitation(token, for_client=True)

    def _check_open(self) -> None:
        if not self.is_open():
            raise Conflict(
                "This controller is reached from its own machine alone. Start it with "
                "`corral up --host 0.0.0.0`, then invite others."
            )

    def _invitation(self, token: str, *, for_client: bool = False) -> Invitation:
        return Invitation(self._address, *self._ports, token, self._sha256, for_client)

    async def check_invited(self, token: str, address: str) -> str:
        """That whoever asks from this address may be a worker: by the token of an invitation, or by
        the word of a tailnet, whose name for the machine it returns."""
        if self.tailnet is not None and token == TOKEN:
            return await self.tailnet.node(address)
        self._roster.check_invited(token)
        return ""

    async def check_may_install(self, token: str, address: str, worker: str) -> None:
        """Our software is for those who are invited, and for workers that look for a newer one."""
        if not (worker and self._roster.is_worker(worker, token)):
            await self.check_invited(token, address)

    async def enrol(self, token: str, address: str, name: str) -> tuple[Enrolled, str]:
        node = await self.check_invited(token, address)
        token = "" if node else token
        return await self._roster.admit(name, self._names(), node=node, token=token)

    # --- machines that ask by themselves ---

    def take_requests(self) -> None:
        self._requests = JoinRequests()

    @property
    def requests(self) -> JoinRequests:
        if self._requests is None:
            raise Conflict(
                "This controller takes no machines that ask by themselves: `discoverable` is off, "
                "or it is reached from its own machine alone. Use what `corral invite` prints."
            )
        return self._requests

    def reveal(self, request: str, number: str) -> None:
        self.requests.reveal(request, number, self._sha256)

    async def confirm(self, code: str) -> Enrolled:
        """The operator saw this code on the machine that asks."""
        asked = self.requests.find(code.replace(" ", ""))
        enrolled, credential = await self._roster.admit(asked.name, self._names())
        self.requests.admit(asked, enrolled.id, enrolled.name, credential)
        return enrolled

    # --- steering ---

    def find(self, name: str) -> Worker:
        for worker in self._loop.workers():
            if name in (worker.id, worker.name):
                return worker
        raise WorkerNotFound(f"No worker is called {name[:100]!r}. `corral workers` lists them.")

    async def change(
        self,
        name: str,
        *,
        new_name: str | None = None,
        draining: bool | None = None,
        labels: Sequence[str] | None = None,
    ) -> Worker:
        """Wishes of the operator, durable when this returns."""
        if new_name is None and draining is None and labels is None:
            raise InvalidRequest("Say what shall change: its name, its labels, or draining.")
        worker = self.find(name)
        engine = self._steered(worker)
        others = [one for one in self._names() if one != worker.name]
        await self._roster.change(
            worker.id, worker.name, name=new_name, draining=draining, labels=labels, taken=others
        )
        changed = engine.wish(worker.id)
        if changed is None:
            raise WorkerNotFound(f"The worker {name[:100]!r} was revoked meanwhile.")
        await self._store.append([], workers=[changed])
        log.info(
            "worker_changed",
            worker=changed.name,
            draining=changed.draining,
            labels=list(changed.capabilities.labels),
        )
        self._loop.wake()
        return changed

    async def revoke(self, name: str) -> Worker:
        enrolled = self._roster.find(name)
        if enrolled is not None and not any(
            worker.id == enrolled.id for worker in self._loop.workers()
        ):  # it never connected; its credential is good until now all the same
            await self._roster.revoke(enrolled.id)
            nothing = Capabilities(cpus=0, memory_gb=0)
            return Worker(enrolled.id, enrolled.name, "agents", nothing, connected=False)
        worker = self.find(name)
        engine = self._steered(worker)
        await self._roster.revoke(worker.id)
        engine.revoke(worker.id)
        return worker

    def _steered(self, worker: Worker) -> Steered:
        for engine in self._loop.fleet.reaching(worker.id):
            if isinstance(engine, Steered):
                return engine
        raise Conflict(
            f"The worker {worker.name!r} belongs to the engine {worker.engine}, which takes no "
            "wishes: drain, label or remove it with that platform's own commands."
        )

    def _names(self) -> list[str]:
        return [worker.name for worker in self._loop.workers()]
