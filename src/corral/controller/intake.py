"""What engines report becomes facts: late and doubled reports are dropped, endings are settled."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence

import structlog

from corral.controller.engines.blame import Blame
from corral.controller.journal.record import UNREADABLE
from corral.controller.loop import Loop
from corral.controller.output.spool import Spool
from corral.controller.store import Store
from corral.core.errors import CorralError, JobNotFound
from corral.core.events import (
    AttemptBegan,
    AttemptExited,
    AttemptOutput,
    AttemptPlaced,
    AttemptReport,
    AttemptReturned,
    AttemptStarted,
    EngineReport,
    JobRequeued,
    JobSucceeded,
    Journaled,
    ResultOrphaned,
    WorkerJoined,
    WorkerLost,
)
from corral.core.frames import ProgressFrame, encode_frame, latest
from corral.core.job import Failure, Head, JobId, State
from corral.core.lifecycle import advance
from corral.core.worker import Worker
from corral.engines.engine import Engine
from corral.scheduler.circuit import RETURNED, Breaker
from corral.scheduler.settle import Policy, settle

log = structlog.get_logger()

MAX_INLINE_OUTPUT, MAX_INLINE_FILES = 64 * 1024, 4
"""Bytes of output that are written without another thread, and files that are opened for them: a
file system that is busy with a commit lets whoever makes a new file wait for it."""
REPORT_BATCH, SMALL_BATCH = 512, 96
"""Reports taken at once, in one commit. Small batches cost a job a tenth more, and whoever submits
a job now and then is answered sooner: they are taken while somebody does."""


class Intake:
    def __init__(
        self,
        engine: Engine,
        store: Store,
        spool: Spool,
        *,
        policy: Policy,
        breaker: Breaker = Breaker(),  # noqa: B008 (it is frozen)
        loop: Loop,
        heard: Callable[[JobId], None],
        stop_grace_s: float,
        notice: Callable[[WorkerJoined | WorkerLost, int], None] = lambda report, attempts: None,
    ) -> None:
        self._engine, self._name, self._store, self._spool = engine, engine.name, store, spool
        self._policy, self._stop_grace_s = policy, stop_grace_s
        self._loop, self._early, self._heard = loop, loop.early, heard
        self._notice = notice
        """Told of workers that come and go, and how many attempts are affected."""
        self._blame = Blame(store, breaker, loop.wake)
        self._orphaned: set[tuple[JobId, int]] = set()
        """Late results of this batch."""
        self._begun: dict[JobId, Head] = {}
        """Heads as they will be once this batch is on disk."""
        self._random = random.Random()  # noqa: S311 (spreads retries, hides nothing)

    async def run(self) -> None:
        while True:
            async for reports in self._loop.fleet.reports(self._engine):
                first = 0
                while first < len(reports):
                    submitting = self._store.submitted_lately()
                    end = first + (SMALL_BATCH if submitting else REPORT_BATCH)
                    await self.take(reports[first:end])
                    first = end

    async def take(self, reports: Sequence[EngineReport]) -> None:
        """Facts of a batch share one commit; when this returns they are on disk."""
        if self._early:
            await self._early.until_written(reports, self._store)
        await self._keep_output([one for one in reports if isinstance(one, AttemptOutput)])
        facts: list[Journaled] = []
        ended: set[tuple[JobId, int]] = set()
        workers = self._loop.workers()
        for report in reports:
            if isinstance(report, AttemptBegan):
                facts.extend(self._began(report))
            elif isinstance(report, AttemptExited):
                facts.extend(self._exited(report, workers, ended))
            elif isinstance(report, AttemptReturned):
                facts.extend(self._returned(report, ended))
            elif isinstance(report, AttemptOutput):
                continue  # written above
            elif isinstance(report, WorkerJoined):
                facts.extend(await self._joined(report, workers, ended))
            else:
                facts.extend(self._lost(report, workers, ended))
        if self._blame.judged:
            self._blame.conclude()  # before the loop hears of these ends, and decides what follows
        known = self._known(reports)
        if facts or known:
            # A full disk delays reports, it never loses one: the engine has not been told yet.
            changes = await self._store.append(
                facts, workers=known, skip_conflicts=True, insist=True
            )
            await asyncio.sleep(0)  # whoever waits for these is told before the worker is
            for change in changes:
                fact, head = change.fact, change.head
                if isinstance(fact, JobSucceeded):
                    self._store.world.took(head.shape, fact.seconds, head.worker, fact.at)
        self._begun.clear()
        self._orphaned.clear()
        for job, attempt in ended:
            self._spool.finish(job, attempt)
        if known:
            self._loop.wake()

    # --- one report each ---

    def _current(self, report: AttemptReport) -> Head | None:
        """The job's head, if the report is about its current attempt and comes from its worker."""
        job = report.job
        head = self._begun.get(job) or self._store.world.heads.get(job) or self._early.head(job)
        if head is None or not head.state.held:
            return None
        course = head.course
        is_ours = course.worker == report.worker and course.engine == self._name
        return head if is_ours and course.attempt == report.attempt else None

    def _held(self, worker: str) -> list[Head]:
        """What was placed on this worker by this engine: others may reach it too."""
        held = self._store.world.held.get(worker, {}).values()
        return [head for head in held if head.engine == self._name]

    async def _keep_output(self, reports: Sequence[AttemptOutput]) -> None:
        told = [report for report in reports if self._current(report) is not None]
        lines = [
            (one.job, one.attempt, encode_frame(one.frame), one.frame.n, one.frame.told)
            for one in told
        ]
        for report in told:
            recent = self._store.recent.get(report.job)
            if recent is not None:
                recent.spoke = True
        size = sum(len(line) for _, _, line, _, _ in lines)
        if size > MAX_INLINE_OUTPUT or self._spool.unopened(lines) > MAX_INLINE_FILES:
            # The system lets a writer of very much wait for the disk; nobody else shall.
            try:
                await asyncio.to_thread(self._spool.extend_smoothly, lines)
            except RuntimeError:  # there is no thread to be had: then everybody waits
                self._spool.extend(lines)
        else:
            self._spool.extend(lines)
        for report in told:
            if isinstance(report.frame, ProgressFrame):
                progress = self._store.world.progress
                progress[report.job] = latest(progress.get(report.job), report.frame)
            self._heard(report.job)

    def _began(self, report: AttemptBegan) -> list[Journaled]:
        head = self._current(report)
        if head is None or head.course.started_at:
            return []
        started = AttemptStarted(
            job=report.job,
            at=report.at,
            attempt=report.attempt,
            devices=report.devices,
            warm=report.warm,
        )
        self._begun[head.id] = advance(head, started, head.last_seq)
        return [started]

    def _exited(
        self, report: AttemptExited, workers: Sequence[Worker], ended: set[tuple[JobId, int]]
    ) -> list[Journaled]:
        head = self._current(report)
        if head is None:
            return self._orphan(report)
        if report.output:
            self._spool.complete(report.job, report.attempt, report.output)
        if (report.job, report.attempt) in ended:
            return []  # told twice
        # Only its own worker ends it: what another says of it must not hide what this one says.
        ended.add((report.job, report.attempt))
        if report.failure is not None or self._store.world.circuits:
            self._blame.judged.append((report.worker, report.failure, report.job))
        return [self._settle(head, report, workers)]

    def _settle(self, head: Head, report: AttemptExited, workers: Sequence[Worker]) -> Journaled:
        return settle(
            head,
            report,
            digest=self._digest(head, report),
            now=time.time(),
            policy=self._policy,
            workers=workers,
            jitter=self._random.random(),
        )

    def _digest(self, head: Head, report: AttemptExited) -> str:
        """Of the document that was sent; asked for only where there is a result."""
        if report.failure is not None:
            return ""
        try:
            return self._store.digest(head)
        except (CorralError, *UNREADABLE) as error:
            # Sent before a restart, and unreadable since: there is nothing left to compare with.
            log.error("digest_not_compared", job=head.id, error=str(error))
            return report.digest

    def _orphan(self, report: AttemptExited) -> list[Journaled]:
        """A late result is kept beside the job; the same result told twice is nothing new."""
        ended_so = State.SUCCEEDED if report.failure is None else State.FAILED
        try:
            head = self._store.head(report.job)
            if head.attempt == report.attempt and head.state in (ended_so, State.CANCELLED):
                return []
            facts = self._store.story(head)
        except JobNotFound:
            log.warning("unknown_job_reported", job=report.job, attempt=report.attempt)
            return []
        except (CorralError, *UNREADABLE) as error:
            log.error("orphan_not_kept", job=report.job, attempt=report.attempt, error=str(error))
            return []
        if not any(
            isinstance(fact, AttemptPlaced)
            and (fact.attempt, fact.worker) == (report.attempt, report.worker)
            for fact in facts
        ):
            log.warning("foreign_result_dropped", job=report.job, worker=report.worker)
            return []
        if any(isinstance(one, ResultOrphaned) and one.attempt == report.attempt for one in facts):
            return []
        if (report.job, report.attempt) in self._orphaned:
            return []
        self._orphaned.add((report.job, report.attempt))
        return [
            ResultOrphaned(
                job=report.job,
                at=report.at,
                attempt=report.attempt,
                outcome="failed" if report.failure else "succeeded",
                result=report.result,
                failure=report.failure,
            )
        ]

    def _returned(self, report: AttemptReturned, ended: set[tuple[JobId, int]]) -> list[Journaled]:
        head = self._current(report)
        if head is None:
            return []
        ended.add((head.id, head.attempt))
        if head.state is State.STOPPING:
            return [self._gone(head, "cancelled", report.reason, ())]
        now = time.time()
        if report.unasked:
            # Many at once may have one cause, and count once: another program took the GPU.
            given_back = Failure(code=RETURNED, message=f"It returned: {report.reason}")
            self._blame.judged.append((report.worker, given_back, f"returned at {int(now)}"))
        return [
            JobRequeued(
                job=head.id,
                at=now,
                attempt=head.attempt,
                code=RETURNED,
                message=report.reason,
                not_before=now + self._policy.backoff_s if report.unasked else 0.0,
                fault="none",
            )
        ]

    async def _joined(
        self, report: WorkerJoined, workers: Sequence[Worker], ended: set[tuple[JobId, int]]
    ) -> list[Journaled]:
        """What the worker has and we want goes on; what it lacks is sent again if it cannot
        have run, and else lost; the rest is stopped."""
        has, left = set(report.attempts), report.leftovers
        plural = "es" * (left != 1)
        ended_there = f" It ended {left} process{plural} left from before." if left else ""
        sent_since = await self._loop.fleet.running(self._engine)
        facts = []
        held = self._held(report.worker)
        self._store.know_digests([head for head in held if (head.id, head.attempt) in has])
        for head in held:
            if (head.id, head.attempt) not in has | sent_since:
                if head.state is State.PLACED and report.remembers:
                    self._loop.start(head)  # it was never sent, or got lost on the way
                    continue
                ended.add((head.id, head.attempt))
                reason = f"Worker {report.name} came back without it.{ended_there}"
                facts.append(self._gone(head, "worker_lost", reason, workers))
            elif head.state is State.STOPPING:
                await self._stop(head.id, head.attempt)
            elif head.course.extended_s:
                self._loop.fleet.extend(head)  # it may have been away when it was
        for job, attempt in has:
            current = self._store.world.held.get(report.worker, {}).get(job)
            if current is None or current.attempt != attempt or current.engine != self._name:
                await self._stop(job, attempt)
        if facts:
            self._blame.lost(report.worker, f"Worker {report.name} came back without its attempts.")
        self._blame.met(report.worker)
        self._tell_of(report, len(has))
        log.info(
            "worker_joined",
            worker=report.name,
            attempts=len(has),
            lost=len(facts),
            leftovers=report.leftovers,
        )
        return facts

    def _tell_of(self, report: WorkerJoined | WorkerLost, attempts: int) -> None:
        try:
            self._notice(report, attempts)
        except Exception as error:  # whoever wants to know: reports go on without them
            log.error("listener_failed", listener="notice", exc_info=error)

    async def _stop(self, job: JobId, attempt: int) -> None:
        await self._engine.stop(job, attempt, grace_s=self._stop_grace_s)

    def _lost(
        self, report: WorkerLost, workers: Sequence[Worker], ended: set[tuple[JobId, int]]
    ) -> list[Journaled]:
        held = self._held(report.worker)
        self._tell_of(report, len(held))
        name = self._store.world.names.get(report.worker, report.worker)
        told = {"worker": name, "reason": report.reason, "attempts": len(held)}
        if report.expected:
            log.info("worker_left", **told)
        else:
            log.warning("worker_lost", **told)
        ended.update((head.id, head.attempt) for head in held)
        if held and not report.expected:
            self._blame.lost(report.worker, report.reason)
        self._blame.met(report.worker)
        return [self._gone(head, "worker_lost", report.reason, workers) for head in held]

    def _gone(self, head: Head, code: str, message: str, workers: Sequence[Worker]) -> Journaled:
        now = time.time()
        seconds = now - head.course.started_at if head.course.started_at else 0.0
        failure = Failure(code=code, message=message)
        exited = AttemptExited(head.id, head.attempt, head.worker, now, seconds, failure=failure)
        return self._settle(head, exited, workers)

    # --- around it ---

    def _known(self, reports: Sequence[EngineReport]) -> list[Worker]:
        """Who came and who went, with when it was last heard of."""
        news = {one.worker for one in reports if isinstance(one, (WorkerJoined, WorkerLost))}
        return [one for one in self._engine.workers() if one.id in news] if news else []
