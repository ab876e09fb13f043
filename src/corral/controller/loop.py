"""The loop: look at the world, decide, write the plan down, start what was written. And the queue's
pause: nothing new is started while it lasts, also after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog
from msgspec import Raw

from corral.controller.auth.tokens import AttemptTokens
from corral.controller.auth.vault import Vault
from corral.controller.early_starts import SentEarly
from corral.controller.engines.fleet import Fleet
from corral.controller.files.private_file import write_kept
from corral.controller.journal.record import Change
from corral.controller.store import Store
from corral.core.errors import (
    CorralError,
    HomeUnusable,
    JournalDamaged,
    SecretNotFound,
    StorageFailed,
)
from corral.core.events import (
    AttemptPlaced,
    JobCancelled,
    JobFailed,
    JobRequeued,
    JobSubmitted,
    Journaled,
)
from corral.core.job import Failure, Head, JobId, Shape, State
from corral.core.lifecycle import shape_of
from corral.engines.engine import Attempt, Engine
from corral.home import read_json
from corral.scheduler.circuit import RETURNED
from corral.scheduler.plan import Placement, Plan, Snapshot, Waiting, decide

log = structlog.get_logger()

DISK_PAUSE_S = 1.0
PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
NOT_SENT = "The controller could not send it to its worker."


class Pause:
    """A wish about the whole queue is no fact about a job: it has a file beside the journal."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changing = asyncio.Lock()
        self.active, self.at, self.by = False, 0.0, ""
        if path.exists():
            kept = read_json(path)
            if not isinstance(kept.get("paused"), bool):
                # A wrong guess would start what somebody held back.
                raise HomeUnusable(
                    f"{path} says nothing clear about whether the queue is paused. Delete it to "
                    'start with a running queue, or write {"paused": true} into it.'
                )
            self.active = kept["paused"]
            self.at, self.by = float(kept.get("at") or 0.0), str(kept.get("by") or "")

    async def change(self, active: bool, *, by: str) -> None:
        """Durable when this returns; asking for what is already so changes nothing."""
        async with self._changing:
            if active != self.active:
                at = time.time()
                await write_kept(self._path, {"paused": active, "at": at, "by": by})
                self.active, self.at, self.by = active, at, by

    def told(self) -> str:
        """Since when and by whom, for a sentence."""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.at)) if self.at else ""
        return f"{f' since {since}' if since else ''}{f' by {self.by}' if self.by else ''}"


class Loop:
    def __init__(
        self,
        store: Store,
        fleet: Fleet,
        tokens: AttemptTokens,
        vault: Vault,
        *,
        aging_s: float,
        pause: Pause,
        keep_for_interactive: int = 0,
        backoff_max_s: float = math.inf,
        decide: Callable[[Snapshot], Plan] = decide,
    ) -> None:
        self._store, self.fleet, self._tokens = store, fleet, tokens
        self.workers = fleet.workers
        self._vault, self.scheduler = vault, decide
        self._aging_s, self._keep = aging_s, keep_for_interactive
        self._backoff_max_s = backoff_max_s
        self._wake = asyncio.Event()
        self._left: frozenset[Shape] = frozenset()
        """Shapes that the last decision left waiting, as long as nothing happened since: one more
        of them behind the others changes nothing."""
        self.pause = pause
        """Of the queue, by somebody's wish; it outlives a restart."""
        self.early = SentEarly()
        self.paused = False
        """Because the controller is stopping."""
        self.full = ""
        """Why nothing is placed though nobody paused it: the disk has no room."""
        self.decided: Callable[[float], None] = lambda seconds: None
        """Told how long each decision took."""
        store.listen(self._committed, missed=self._missed)

    def wake(self) -> None:
        self._left = frozenset()
        self._wake.set()

    def _committed(self, changes: Sequence[Change]) -> None:
        """What was placed starts in the same moment in which the world knows of it: nobody who
        looks at what a worker has can come in between."""
        placed = [change.head for change in changes if type(change.fact) is AttemptPlaced]
        if placed:
            sent = [head for head in placed if head.id not in self.early]
            documents = self._store.documents(sent)
            for head in sent:
                self.start(head, documents.get(head.submitted_seq))
        if self._store.world.anybody_waits and not all(
            type(change.fact) is JobSubmitted and change.head.shape in self._left
            for change in changes
        ):
            self.wake()

    def _missed(self, changes: Sequence[Change]) -> None:
        """Nobody knows which of these were sent: none shall wait for ever."""
        for change in changes:
            if type(change.fact) is AttemptPlaced and change.head.id not in self.early:
                self._give_back(change.head, NOT_SENT, pause_s=PAUSE_S)
        self.wake()

    def placed_on(self, job: JobId, attempt: int) -> str:
        """The worker that has this attempt now, or will have had it once it is written."""
        head = self._store.world.heads.get(job) or self.early.head(job)
        if head is None or head.attempt != attempt or not head.state.held:
            return ""
        return head.worker

    async def run(self) -> None:
        while True:
            self._wake.clear()
            try:
                timeout = await self.turn()
            except StorageFailed:
                timeout = DISK_PAUSE_S
            if not self._wake.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout):
                        await self._wake.wait()

    async def hold(self, active: bool, *, by: str) -> None:
        """Pauses or resumes the queue, durably."""
        await self.pause.change(active, by=by)
        self.wake()

    def why_paused(self) -> str:
        """Why nothing new is started, or nothing where it is."""
        if self.paused:
            return "The controller is stopping: nothing new is started."
        if self.full:
            return f"{self.full} Nothing is started until there is room."
        if self.pause.active:
            return (
                f"The queue is paused{self.pause.told()}: nothing new is started. Go on with "
                "`corral queue resume`."
            )
        return ""

    async def turn(self) -> float | None:
        """One decision and its consequences; returns when to look again if nothing happens."""
        world, now = self._store.world, time.time()
        due = world.wake_due(now, self._backoff_max_s)
        world.last_aged_at = min(world.last_aged_at, now)  # the clock may have been put back
        if self.why_paused():
            return None
        if world.lines:
            plan = self.decide(self.snapshot(now))
            if plan.placements:
                world.reserve(plan.placements, {})
                try:
                    facts = self.placed(plan.placements, now)
                    await self._store.append(facts, skip_conflicts=True)
                finally:
                    world.release(plan.placements)
                if plan.turn:
                    world.last_aged_at = now
                self.wake()
            elif plan.overdue is None:
                self._left = frozenset(world.lines)
        return self._next_look(now, due)

    def placed(
        self, placements: Sequence[Placement], now: float, submitted: Sequence[JobSubmitted] = ()
    ) -> list[AttemptPlaced]:
        """Placements as facts, of jobs that are known or just `submitted`."""
        fleet, heads = self.fleet, self._store.world.heads
        new: dict[JobId, Shape] = {}
        if not fleet.only:
            new = {fact.job: shape_of(fact) for fact in submitted}

        def engine(one: Placement) -> str:
            return fleet.through(one.worker, new.get(one.job) or heads[one.job].shape)

        return [
            AttemptPlaced(
                job=one.job,
                at=now,
                attempt=one.attempt,
                worker=one.worker,
                why=one.why,
                ahead=one.ahead,
                engine=fleet.only or engine(one),
            )
            for one in placements
        ]

    def snapshot(
        self, now: float, lines: Mapping[Shape, Sequence[Waiting]] | None = None
    ) -> Snapshot:
        """What a decision would see now, of those who wait or of other `lines`."""
        return self._store.world.snapshot(
            now, self.workers(), self._aging_s, lines, keep_for_interactive=self._keep
        )

    def decide(self, snapshot: Snapshot) -> Plan:
        began = time.perf_counter()
        plan = self.scheduler(snapshot)
        self.decided(time.perf_counter() - began)
        return plan

    def _next_look(self, now: float, due: float | None) -> float | None:
        times = [due] if due is not None else []
        oldest = self._store.world.oldest_wait()
        if oldest is not None:
            turn = self._store.world.last_aged_at + self._aging_s
            times.append(max(oldest + self._aging_s, turn, now + 1.0))
            probe = self._store.world.next_probe(now)
            if probe is not None:
                times.append(probe)
        return max(0.0, min(times) - now) if times else None

    def start(self, placed: Head, document: tuple[bytes, str] | None = None) -> None:
        """Where nobody knows whether that was done before, it is done again: twice is once. Its
        document comes with its digest."""
        engine = self.fleet.engines.get(placed.engine)
        if engine is None:
            self._give_back(placed, "Its worker was revoked before the job was sent.")
            return
        try:
            self._start(placed, engine, document)
        except Exception as error:  # it costs its own attempt and no other
            log.error("attempt_not_sent", job=placed.id, attempt=placed.attempt, exc_info=error)
            pause_s = min(PAUSE_S * 2.0 ** min(placed.attempt, 10), LONGEST_PAUSE_S)
            self._give_back(placed, f"{NOT_SENT} ({type(error).__name__})", pause_s=pause_s)

    def _start(self, placed: Head, engine: Engine, known: tuple[bytes, str] | None) -> None:
        head = self._store.world.heads.get(placed.id)
        if head is not placed and (
            head is None or head.state is not State.PLACED or head.attempt != placed.attempt
        ):
            return  # it went on in the same commit
        try:
            document, digest = known or self._store.document(head)
        except JournalDamaged as error:
            return self._give_up(head, "damaged", error)
        secrets: dict[str, str] = {}
        if head.given.secrets:
            try:
                secrets = self._vault.values(head.given.secrets)
            except SecretNotFound as error:
                return self._give_up(head, "secret_missing", error)
        self.send(head, engine, document, digest, secrets)

    def send(
        self, head: Head, engine: Engine, document: bytes, digest: str, secrets: Mapping[str, str]
    ) -> None:
        self._store.world.digests[head.id] = digest
        course, shape, given = head.course, head.shape, head.given
        engine.start(
            Attempt(
                job=head.id,
                attempt=course.attempt,
                worker=course.worker,
                document=Raw(document),
                digest=digest,
                token=self._tokens.issue(head.id, course.attempt),
                needs=shape.needs,
                above_vram_gb=shape.above_vram_gb,
                duration_s=head.duration_s,
                queue_class=shape.queue_class,
                priority=shape.priority,
                checkpoint=course.checkpoint,
                correlation_id=given.correlation_id,
                secrets=dict(secrets),
            )
        )

    def _give_up(self, head: Head, code: str, error: CorralError) -> None:
        """An attempt that was placed and cannot be sent, here or anywhere."""
        failure = Failure(code=code, message=error.message)
        log.error(
            "attempt_not_sent", job=head.id, attempt=head.attempt, code=code, error=error.message
        )
        self._conclude(
            JobFailed(job=head.id, at=time.time(), attempt=head.attempt, failure=failure)
        )

    def _give_back(self, placed: Head, why: str, *, pause_s: float = 0.0) -> None:
        """An attempt that was placed and not sent: nobody will report it lost."""
        head = self._store.world.heads.get(placed.id)
        if head is None or head.attempt != placed.attempt:
            return
        if head.state is State.STOPPING:
            self._conclude(JobCancelled(job=head.id, at=time.time(), attempt=head.attempt))
        else:
            again = JobRequeued(
                job=head.id,
                at=time.time(),
                attempt=head.attempt,
                code=RETURNED,
                message=why,
                not_before=time.time() + pause_s if pause_s else 0.0,
                fault="none",
            )
            self._conclude(again)

    def _conclude(self, fact: Journaled) -> None:
        # Where it fails the controller ends, and the next one finds the attempt with its worker.
        with contextlib.suppress(StorageFailed):
            written = self._store.enqueue([fact], {}, skip_conflicts=True, insist=True)
            written.add_done_callback(lambda done: done.cancelled() or done.exception())
