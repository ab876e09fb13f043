"""The agents engine: worker machines that dialled in and keep a socket open to us.

The socket itself lives in `api`; here is what its messages mean. A closed socket starts a grace
period, and a worker that is back in time keeps its attempts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence

import structlog

from corral.core.events import (
    AttemptExited,
    AttemptOutput,
    AttemptReturned,
    EngineReport,
    WorkerJoined,
    WorkerLost,
)
from corral.core.job import JobId
from corral.core.worker import Worker
from corral.engines.dialled_workers import DialledWorkers, Graces
from corral.engines.engine import Attempt, EngineContext, Session
from corral.engines.reports import REASON, OutputReceipts, report_of
from corral.protocol import messages as wire

log = structlog.get_logger()

LEFT = "its worker left before the job was sent"
INBOX_LIMIT = 1 << 20
"""Bytes of frames that may wait for the intake before sockets are read no further."""


def build(context: EngineContext) -> AgentsEngine:
    return AgentsEngine(context)


class AgentsEngine:
    name = "agents"

    def __init__(self, context: EngineContext) -> None:
        settings, self._local_id = context.settings, context.local_id
        self._stop_grace_s = settings.cancel_grace_s
        self._placed_on = context.placed_on
        """Nobody has what was not placed on it, whatever it claims."""
        known = [worker for worker in context.known if context.is_enrolled(worker.id)]
        self._workers = DialledWorkers(known, self.name, self._local_id, context.wishes)
        self._sessions: dict[str, Session] = {}
        self._attempts: dict[tuple[JobId, int], str] = {}
        self._strays: dict[str, set[tuple[JobId, int]]] = {}
        """By worker: attempts that it has and nobody wants of it (any more)."""
        self._recalled: set[tuple[JobId, int]] = set()
        self._receipts = OutputReceipts(self._mention)
        self._inbox: list[tuple[str, EngineReport]] = []
        self._inbox_bytes = 0
        self._arrived = asyncio.Event()
        self._paused: set[Session] = set()
        reason = f"It did not come back within {settings.grace_s:g} s."
        self._away = Graces(settings.grace_s, lambda worker: self._lose(worker, reason))
        self.stopping = False
        self._emptied = asyncio.Event()
        """Set whenever this machine's own worker is not connected."""
        self._settled = asyncio.Event()
        """Set whenever everything heard is on disk."""
        self.trouble = ""
        self.changed: Callable[[], None] = lambda: None

    def open(self, holding: Collection[str] = ()) -> None:
        """Starts the grace period of all known workers that did not say goodbye, and of any other
        that is `holding` attempts: they may still run what we sent them."""
        missed = {worker.id for worker in self._workers.all() if not worker.left}
        for worker in missed.union(holding):
            self._away.begin(worker)

    # --- the five verbs ---

    def workers(self) -> Sequence[Worker]:
        return self._workers.all()

    def start(self, attempt: Attempt) -> None:
        key = (attempt.job, attempt.number)
        session = self._sessions.get(attempt.worker)
        if key in self._attempts:
            return  # sent before
        if session is None:
            if attempt.worker not in self._away:
                # It left for good while this was placed, and was reported lost before that.
                self._report(attempt.worker, AttemptReturned(*key, attempt.worker, LEFT))
            return  # or it just left, and returns or is lost within its grace
        session.send(wire.JobDispatch.of(attempt))
        self._attempts[key] = attempt.worker  # of what could not even be said it has nothing

    async def stop(
        self, job: JobId, attempt: int, *, grace_s: float, unbegun: bool = False
    ) -> None:
        session = self._sessions.get(self._attempts.get((job, attempt), ""))
        if session is not None and unbegun:
            self._recalled.add((job, attempt))
            session.send(wire.JobRecall(job=job, attempt=attempt))
        elif session is not None:
            session.send(wire.JobCancel(job=job, attempt=attempt, grace_s=grace_s))

    def extend(self, job: JobId, attempt: int, duration_s: float) -> None:
        worker = self._attempts.get((job, attempt), "")
        session, known = self._sessions.get(worker), self._workers.get(worker)
        if session is not None and known is not None and known.capabilities.extends:
            session.send(wire.JobExtend(job=job, attempt=attempt, duration_s=duration_s))

    async def running(self) -> Collection[tuple[JobId, int]]:
        return [key for key, worker in self._attempts.items() if worker in self._sessions]

    async def events(self) -> AsyncIterator[Sequence[EngineReport]]:
        while True:
            if not self._inbox:
                self._settled.set()
            await self._arrived.wait()
            self._arrived.clear()
            batch, size, self._inbox, self._inbox_bytes = self._inbox, self._inbox_bytes, [], 0
            while self._paused:
                self._paused.pop().resume()
            if batch:
                yield [report for _, report in batch]
                self._acknowledge(batch, size)

    def _acknowledge(self, batch: Sequence[tuple[str, EngineReport]], size: int) -> None:
        told: dict[tuple[str, tuple[JobId, int]], int] = {}
        for worker, report in batch:
            if isinstance(report, AttemptOutput):
                told[worker, (report.job, report.attempt)] = report.frame.n
            elif isinstance(report, (AttemptExited, AttemptReturned)):
                key = (report.job, report.attempt)
                self._end(key, worker)
                if told:
                    told.pop((worker, key), None)  # this says all
                self._receipts.drop(worker, key)
                self._mention(worker, wire.ResultReceived(*key))
        for (worker, key), number in told.items():
            if number:
                self._receipts.note(worker, key, number)
        self._receipts.taken(size)

    def _mention(self, worker: str, message: wire.FromController) -> None:
        session = self._sessions.get(worker)
        if session is not None:
            session.mention(message)

    def _end(self, key: tuple[JobId, int], worker: str) -> None:
        if self._attempts.get(key) == worker:
            del self._attempts[key]
            self._recalled.discard(key)
        elif worker in self._strays:
            self._strays[worker].discard(key)

    # --- what the sockets say ---

    def join(self, session: Session, register: wire.WorkerRegister) -> Worker:
        before = self._workers.get(register.worker_id)
        worker = self._workers.join(register)
        remembers = before is not None and before.incarnation == worker.incarnation != ""
        former = self._sessions.pop(worker.id, None)
        if former is not None:
            former.close(wire.CLOSE_REPLACED, "The same worker connected again.")
        self._away.end(worker.id)
        self._sessions[worker.id] = session
        if worker.local:
            self._emptied.clear()
        self._forget(worker.id)
        mine = self._claimed(session, worker.id, register.attempts)
        self._report(
            worker.id,
            WorkerJoined(
                worker.id, worker.name, worker.capabilities, mine, register.leftovers, remembers
            ),
        )
        self._slow_down(session)  # or each time it dials it would add another frame
        return worker

    def _claimed(
        self, session: Session, worker: str, claims: Sequence[tuple[JobId, int]]
    ) -> tuple[tuple[JobId, int], ...]:
        """A claim counts for what was placed on this worker and is still with it. The rest it
        shall stop: it may say how that ended, and nothing else of it."""
        mine = tuple(key for key in claims if self._placed_on(*key) == worker)
        self._attempts.update(dict.fromkeys(mine, worker))
        strays = set(claims).difference(mine)
        if strays:
            self._strays[worker] = strays
            log.info("attempts_not_wanted", worker=worker, attempts=len(strays))
        for job, attempt in strays:
            session.send(wire.JobCancel(job=job, attempt=attempt, grace_s=self._stop_grace_s))
        return mine

    def name_of(self, register: wire.WorkerRegister) -> str:
        return self._workers.name_of(register)

    def wish(self, worker: str) -> Worker | None:
        known = self._workers.get(worker)
        if known is None:
            return None
        former = known.name
        known = self._workers.wish(worker)
        session = self._sessions.get(worker)
        if known.name != former and session is not None:
            session.rename(known.name)
        if known.draining and session is not None:
            for (job, attempt), owner in self._attempts.items():
                if owner == worker:  # those that have begun it keeps
                    self._recalled.add((job, attempt))
                    session.send(wire.JobRecall(job=job, attempt=attempt))
        return known

    def revoke(self, worker: str) -> None:
        session = self._sessions.pop(worker, None)
        if session is not None:
            session.close(wire.CLOSE_REVOKED, "This worker was revoked. It may join again.")
        self._lose(worker, "It was revoked.", expected=True)
        self._workers.remove(worker)

    def leave(self, session: Session, worker: str, *, silent_s: float = 0.0) -> None:
        if self._sessions.get(worker) is not session:
            return
        del self._sessions[worker]
        name = self._workers.disconnect(worker).name
        log.warning("worker_disconnected", worker=name, silent_s=round(silent_s, 1))
        self._away.begin(worker, silent_s)
        self._note_emptied()

    def hear(self, worker: str, heard: Sequence[wire.FromWorker], size: int = 0) -> None:
        if worker not in self._sessions:
            return  # it was revoked or said goodbye, and its socket is not closed yet
        now, waiting = time.time(), len(self._inbox)
        for message in heard:
            self._hear(worker, message, now)
        if len(self._inbox) > waiting:
            self._inbox_bytes += size
        session = self._sessions.get(worker)
        if session is not None:
            self._slow_down(session)

    def _slow_down(self, session: Session) -> None:
        if self._inbox_bytes > INBOX_LIMIT:
            session.pause()
            self._paused.add(session)

    def _hear(self, worker: str, message: wire.FromWorker, now: float) -> None:
        if isinstance(message, (wire.WorkerHeartbeat, wire.WorkerGoodbye, wire.WorkerRegister)):
            self._hear_of_itself(worker, message, now)
            return
        job, attempt = message.job, message.attempt
        if self._attempts.get((job, attempt)) != worker and not self._is_late(worker, message):
            if isinstance(message, (wire.JobCompleted, wire.JobFailed, wire.JobReturned)):
                # Told again after its acknowledgement was lost on the way.
                session = self._sessions.get(worker)
                if session is not None:
                    session.send(wire.ResultReceived(job=job, attempt=attempt))
            elif isinstance(message, (wire.JobOutput, wire.JobProgress)) and message.n:
                self._receipts.note(worker, (job, attempt), message.n)
            return
        asked = isinstance(message, wire.JobReturned) and self._asked(worker, message)
        self._report(worker, report_of(worker, message, now, asked=asked))

    def _hear_of_itself(
        self,
        worker: str,
        message: wire.WorkerHeartbeat | wire.WorkerGoodbye | wire.WorkerRegister,
        now: float,
    ) -> None:
        if isinstance(message, wire.WorkerHeartbeat):
            if self._workers.beat(worker, message, now):
                self.changed()
        elif isinstance(message, wire.WorkerGoodbye):
            self._goodbye(worker, message.reason)
        elif worker in self._sessions:
            told = "A worker registers once, with the first message of a connection."
            self._sessions[worker].close(wire.CLOSE_OUT_OF_ORDER, told)

    def _asked(self, worker: str, message: wire.JobReturned) -> bool:
        """Whether somebody here wants the attempt back."""
        known = self._workers.get(worker)
        draining = self.stopping or (known is not None and known.draining)
        return draining or (message.job, message.attempt) in self._recalled

    def _is_late(self, worker: str, message: wire.FromWorker) -> bool:
        """Whether it says how an attempt ended that it has and that was taken from it."""
        if worker not in self._strays or not isinstance(
            message, (wire.JobCompleted, wire.JobFailed)
        ):
            return False
        key = (message.job, message.attempt)
        return key in self._strays[worker] and key not in self._attempts

    def _goodbye(self, worker: str, reason: str) -> None:
        self._sessions.pop(worker, None)
        self._workers.leave(worker)
        self._lose(worker, reason[:REASON] or "It said goodbye.", expected=True)
        self._note_emptied()

    async def drain(self, grace_s: float) -> None:
        """Asks this machine's own worker to finish and say goodbye; nobody comes back from now
        on. Other machines go on with what they run, and tell of it when we are back."""
        self.stopping = True
        session = self._sessions.get(self._local_id)
        if session is not None:
            session.send(wire.Drain(grace_s=grace_s))
        self._note_emptied()
        await self._emptied.wait()

    async def close(self) -> None:
        await self._settled.wait()

    def _note_emptied(self) -> None:
        if self._local_id not in self._sessions:
            self._emptied.set()

    def _lose(self, worker: str, reason: str, *, expected: bool = False) -> None:
        self._away.end(worker)
        self._forget(worker)
        told = f"{self._workers.name(worker)}: {reason}"
        self._report(worker, WorkerLost(worker, told, expected))

    def _forget(self, worker: str) -> None:
        self._attempts = {key: owner for key, owner in self._attempts.items() if owner != worker}
        self._recalled &= self._attempts.keys()
        self._strays.pop(worker, None)

    def _report(self, worker: str, report: EngineReport) -> None:
        self._inbox.append((worker, report))
        self._settled.clear()
        self._arrived.set()
