"""The roster: who may be a worker here, and what the operator wishes of each.

The token of an invitation only enrols, for some time and perhaps for so many machines. What a
worker gets for it is a credential of its own, good for nothing but being that worker. Of both only
digests are kept.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import structlog
from msgspec import Struct
from msgspec.structs import replace

from corral.controller.auth.tokens import digest_of, same
from corral.controller.files.private_file import read_kept, write_kept
from corral.core.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    Unauthorized,
    WorkerNotFound,
)
from corral.core.worker import Wishes

log = structlog.get_logger()

AGAIN = "let the workers join again"
"""What to do about a file that cannot be read."""
MAX_WORKERS = 10_000
MAX_LABELS, MAX_LABEL = 64, 100
NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,62}")
DAY_S, MAX_INVITED_S = 86_400.0, 366 * 86_400.0
MAX_INVITATIONS, REMEMBERED_S = 1_000, 7 * 86_400.0
RESERVED = frozenset({"auto", "local"})
"""Words that mean something else where a job names its worker."""


class Enrolled(Struct, frozen=True):
    id: str
    name: str
    sha256: str
    """Of its credential; empty for this machine's own worker, which needs no invitation."""
    enrolled_at: float
    draining: bool = False
    labels: tuple[str, ...] = ()
    """What the operator added to those that the worker tells of itself."""
    node: str = ""
    """The machine of a tailnet that vouched for it."""
    told: str = ""
    """Where it last found the controller, as far as we know."""


class Issued(Struct, frozen=True):
    sha256: str
    """Of its token."""
    expires_at: float
    uses: int | None = None
    """How many machines may still join with it; None for any number."""

    def refusal(self, now: float) -> str:
        if self.expires_at <= now:
            ended = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.expires_at))
            return f"This invitation was good until {ended}"
        if self.uses == 0:
            return "As many machines have joined with this invitation as it was made for"
        return ""


class _File(Struct):
    workers: list[Enrolled] = []
    invitations: list[Issued] = []
    refused: list[str] = []
    """Machines of the tailnet that were revoked: the tailnet vouches for them no more."""


class Roster:
    def __init__(self, path: Path, *, local_id: str, local_credential: str) -> None:
        self._path = path
        self._local_id, self._local_credential = local_id, local_credential
        self._changing = asyncio.Lock()
        self.url = ""
        """Where workers reach this controller now; empty where none does."""
        kept = read_kept(path, _File, AGAIN)
        self._by_id = {one.id: one for one in kept.workers}
        self._digests = {one.sha256 for one in kept.workers}
        self._refused = frozenset(kept.refused)
        self._invitations = {one.sha256: one for one in kept.invitations}

    # --- asking ---

    def find(self, name: str) -> Enrolled | None:
        return next((one for one in self._by_id.values() if name in (one.id, one.name)), None)

    def knows(self, worker: str) -> bool:
        return worker == self._local_id or worker in self._by_id

    def wishes(self, worker: str) -> Wishes:
        enrolled = self._by_id.get(worker)
        if enrolled is None:
            return Wishes()
        return Wishes(enrolled.name, enrolled.draining, enrolled.labels)

    def is_worker(self, worker: str, credential: str) -> bool:
        if worker == self._local_id:
            return same(credential, self._local_credential)
        enrolled = self._by_id.get(worker)
        return enrolled is not None and same(digest_of(credential), enrolled.sha256)

    def recognises(self, credential: str) -> bool:
        """Whether it is any worker's, before that one has said which it is."""
        digest = digest_of(credential)
        return same(credential, self._local_credential) or digest in self._digests

    def check_invited(self, token: str) -> Issued:
        found = self._invitations.get(digest_of(token))
        why = found.refusal(time.time()) if found else "This invitation is not good any more"
        if found is None or why:
            raise Unauthorized(f"{why}. Ask for a new one: `corral invite`.")
        return found

    def told_elsewhere(self) -> list[Enrolled]:
        """Workers that look for this controller where it is not any more."""
        return [one for one in self._by_id.values() if one.told and one.told != self.url]

    # --- changing: durable when these return ---

    async def reached(self, workers: Iterable[str]) -> None:
        """These are connected: whatever they were told, they know where we are now."""
        async with self._changing:
            news = {
                worker: replace(known, told=self.url)
                for worker in workers
                if (known := self._by_id.get(worker)) and known.sha256 and known.told != self.url
            }
            if news:
                await self._write({**self._by_id, **news})

    async def invite(
        self, for_s: float = DAY_S, uses: int | None = None, *, renew: bool = False
    ) -> tuple[str, Issued]:
        """The token of a new invitation, shown this once. Renewed, those before enrol nobody."""
        if not 0 < for_s <= MAX_INVITED_S:
            raise InvalidRequest("An invitation is good for some seconds, up to a year.")
        if uses is not None and not 0 < uses <= MAX_WORKERS:
            raise InvalidRequest(f"An invitation is for 1 to {MAX_WORKERS:,} machines.")
        token, now = secrets.token_urlsafe(32), time.time()
        issued = Issued(digest_of(token), now + for_s, uses)
        async with self._changing:
            before = [] if renew else list(self._invitations.values())
            live = [one for one in before if not one.refusal(now)]
            if len(live) >= MAX_INVITATIONS:
                raise Conflict(
                    f"{MAX_INVITATIONS:,} invitations are good at this moment. Void them with "
                    "`corral invite --renew`."
                )
            # Those that ended are kept for a while, to say so to who comes too late.
            over = [one for one in before if one.refusal(now)][-MAX_INVITATIONS:]
            recent = [one for one in over if one.expires_at > now - REMEMBERED_S]
            await self._write(invitations={one.sha256: one for one in (*recent, *live, issued)})
        log.info("invited", for_s=for_s, uses=uses, renewed=renew)
        return token, issued

    async def admit(
        self, name: str, taken: Sequence[str], *, node: str = "", token: str = ""
    ) -> tuple[Enrolled, str]:
        """A new worker and its credential, shown this once. A taken name gets a number behind it. A
        machine that a tailnet vouches for is one worker, however often it asks."""
        if node and node in self._refused:
            raise Forbidden(
                "This machine was revoked. To let it work again, join it with the string that "
                "`corral invite --renew` prints on the controller."
            )
        name = name.strip() or "worker"
        if not NAME.fullmatch(name):
            name = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:60] or "worker"
        async with self._changing:
            invitations = self._invitations
            if token:  # looked at here, where nobody else takes its last use meanwhile
                shown = self.check_invited(token)
                if shown.uses is not None:
                    used = replace(shown, uses=shown.uses - 1)
                    invitations = {**invitations, used.sha256: used}
            if len(self._by_id) >= MAX_WORKERS:
                raise Conflict(f"There are {MAX_WORKERS:,} workers. Revoke some first.")
            names = {*taken, *RESERVED, *(one.name for one in self._by_id.values())}
            free = next(
                one
                for one in (name, *(f"{name}-{n}" for n in range(2, 20_000)))
                if one not in names
            )
            credential = secrets.token_urlsafe(32)
            former = [one for one in self._by_id.values() if node and one.node == node]
            if former:
                enrolled = replace(former[0], sha256=digest_of(credential), told=self.url)
            else:
                made = f"w-{secrets.token_hex(6)}"
                enrolled = Enrolled(
                    made, free, digest_of(credential), time.time(), node=node, told=self.url
                )
            await self._write({**self._by_id, enrolled.id: enrolled}, invitations=invitations)
        log.info("worker_enrolled", worker=enrolled.id, name=enrolled.name)
        return enrolled, credential

    async def change(
        self,
        worker: str,
        known_as: str,
        *,
        name: str | None = None,
        draining: bool | None = None,
        labels: Sequence[str] | None = None,
        taken: Sequence[str] = (),
    ) -> Enrolled:
        async with self._changing:
            old = self._by_id.get(worker)
            if old is None:
                if worker != self._local_id:
                    raise WorkerNotFound(f"No worker {worker} is on the roster.")
                old = Enrolled(worker, known_as, "", time.time())
            if name is not None and name != old.name:
                if not NAME.fullmatch(name) or name in RESERVED:
                    raise InvalidRequest(
                        f"A worker's name has 1 to 63 letters, digits and ._-, begins with a "
                        f"letter or digit, and is not auto or local; got {name[:100]!r}."
                    )
                others = {one.name for one in self._by_id.values() if one.id != worker}
                if name in {*taken, *others}:
                    raise Conflict(f"Another worker is called {name!r} already.")
                old = replace(old, name=name)
            if draining is not None:
                old = replace(old, draining=draining)
            if labels is not None:
                old = replace(old, labels=_labels(labels))
            await self._write({**self._by_id, worker: old})
        return old

    async def revoke(self, worker: str) -> None:
        if worker == self._local_id:
            raise Conflict(
                "This is the controller's own machine. Switch its worker off with "
                "`worker: {enabled: false}` in corral.yaml, or drain it."
            )
        async with self._changing:
            if worker not in self._by_id:
                raise WorkerNotFound(f"No worker {worker} is on the roster.")
            refused = self._refused | {self._by_id[worker].node} - {""}
            kept = {key: one for key, one in self._by_id.items() if key != worker}
            await self._write(kept, refused)
        log.info("worker_revoked", worker=worker)

    async def _write(
        self,
        workers: dict[str, Enrolled] | None = None,
        refused: frozenset[str] | None = None,
        invitations: dict[str, Issued] | None = None,
    ) -> None:
        workers = self._by_id if workers is None else workers
        refused = self._refused if refused is None else refused
        invitations = self._invitations if invitations is None else invitations
        kept = _File(list(workers.values()), list(invitations.values()), sorted(refused))
        await write_kept(self._path, kept)
        self._by_id, self._refused, self._invitations = workers, refused, invitations
        self._digests = {one.sha256 for one in workers.values()}


def _labels(labels: Sequence[str]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(label.strip() for label in labels))
    for label in found:
        if not 0 < len(label) <= MAX_LABEL or any(not mark.isprintable() for mark in label):
            raise InvalidRequest(
                f"A label is a word such as 'ssd' or 'zone=a', up to {MAX_LABEL} characters; got "
                f"{label[:MAX_LABEL]!r}."
            )
    if len(found) > MAX_LABELS:
        raise InvalidRequest(f"A worker has up to {MAX_LABELS} labels; got {len(found)}.")
    return found
