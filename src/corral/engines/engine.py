"""The port between the controller and the ways to reach workers: five verbs and a life."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from corral.core.events import EngineReport
from corral.core.job import Assignment, JobId
from corral.core.worker import Wishes, Worker
from corral.home import Home
from corral.protocol import messages as wire
from corral.runtime.standalone.ticket import AttemptTicket
from corral.settings import Settings


class Attempt(Assignment, frozen=True, gc=False, kw_only=True):
    """One try of a job on one worker: all that an engine needs to start it."""

    worker: str

    @property
    def number(self) -> int:
        return self.attempt


class EngineContext(Struct, frozen=True):
    """What a controller gives an engine to be built with."""

    settings: Settings
    home: Home
    known: Sequence[Worker] = ()
    """Its workers as the journal remembers them: known again, also while their platform is down."""
    wishes: Callable[[str], Wishes] = lambda worker: Wishes()
    placed_on: Callable[[JobId, int], str] = lambda job, attempt: ""
    """The worker that an attempt was placed on, if it is there now."""
    is_enrolled: Callable[[str], bool] = lambda worker: True
    """Whether a worker that dials in was invited, and not revoked since."""
    local_id: str = ""
    """The worker that is the controller's own machine."""
    ticket: Callable[[JobId, int], AttemptTicket] = lambda job, attempt: AttemptTicket(
        "", job, attempt, ""
    )
    """What a process of this machine needs to run an attempt by itself (see `posted`)."""
    told: Callable[[JobId, int], int] = lambda job, attempt: 0
    """The number of the last thing that an attempt told and that is on disk."""


class Engine(Protocol):
    """An engine only starts, stops and reports; it decides nothing and concludes nothing."""

    name: str
    trouble: str
    """Why its platform cannot be asked now, in a sentence for the owner; empty: it can."""
    changed: Callable[[], None]
    """Told when a worker can do something that it could not do a moment ago."""

    def open(self, holding: Collection[str]) -> None:
        """Called once, before anything else: from now on it reports. Workers that are `holding`
        attempts by the journal and do not turn up within their grace are reported lost."""

    async def drain(self, grace_s: float) -> None:
        """The controller stops: what would end with it is asked to end within this time. Returns
        when that is so; everything else goes on, and is reported to the next controller."""

    async def close(self) -> None:
        """The last word: returns when everything that was reported is on disk."""

    def workers(self) -> Sequence[Worker]:
        """Every worker it knows, also those that are asleep."""

    def start(self, attempt: Attempt) -> None:
        """Takes it and returns at once: from this moment it is among `running`. Starting twice is
        the same as starting once. What becomes of it comes by `events`."""

    async def stop(
        self, job: JobId, attempt: int, *, grace_s: float, unbegun: bool = False
    ) -> None:
        """Asks for an end; the proof is the AttemptExited that follows. Unknown attempts: no-op.
        `unbegun` asks for it back, as AttemptReturned, and leaves alone what has begun."""

    async def running(self) -> Collection[tuple[JobId, int]]:
        """What it has now: the truth after a restart."""

    def events(self) -> AsyncIterator[Sequence[EngineReport]]:
        """What it saw, in batches that arrived together. Asking for the next batch says that the
        one before is on disk: only then may the engine forget it."""


class Session(Protocol):
    """One open socket to a worker."""

    def send(self, message: wire.FromController) -> None:
        """Sends a message, or queues it: those of one turn of the event loop share frames."""

    def mention(self, message: wire.FromController) -> None:
        """The same for what nobody waits for: with the next frame, or a little later in its own."""

    def rename(self, name: str) -> None:
        """Tells the worker what it is called from now on."""

    def close(self, code: int, reason: str) -> None: ...

    def pause(self) -> None:
        """Reads nothing more for now: the worker then waits too."""

    def resume(self) -> None: ...


@runtime_checkable
class Dialled(Protocol):
    """An engine whose workers dial in to the controller."""

    stopping: bool
    """Nobody comes in any more."""

    def name_of(self, register: wire.WorkerRegister) -> str:
        """What a worker is called here, whatever it calls itself."""

    def join(self, session: Session, register: wire.WorkerRegister) -> Worker:
        """A worker registered. A second socket of the same worker replaces the first."""

    def leave(self, session: Session, worker: str, *, silent_s: float = 0.0) -> None:
        """A socket closed without a word. The grace begins with the last one that was heard."""

    def hear(self, worker: str, heard: Sequence[wire.FromWorker], size: int = 0) -> None:
        """Messages of one frame of that size. No more are read while the intake is behind."""


@runtime_checkable
class Extendable(Protocol):
    """An engine that can tell those of its workers that `extends` of a longer duration. One whose
    attempts post has a mailbox for that."""

    def extend(self, job: JobId, attempt: int, duration_s: float) -> None:
        """The attempt may run so long, from its start. Twice is once; unknown attempts: no-op."""


@runtime_checkable
class Steered(Protocol):
    """An engine whose workers the operator can rename, label, drain and revoke. Others lack it:
    their platform has commands of its own for that."""

    def wish(self, worker: str) -> Worker | None:
        """The operator wishes something else of a worker now; what it looks like then."""

    def revoke(self, worker: str) -> None:
        """It is no worker of ours any more: out at once, and what it had goes elsewhere."""
