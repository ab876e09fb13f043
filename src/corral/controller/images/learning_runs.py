"""Learning runs: a plan becomes a batch, and what came of it one result, kept beside the lines.

A run is its name and its plan. Asked for again, whoever asks gets the same run: the keys of its
jobs follow from both. The result follows from the journal, and is written down when all jobs have
ended, before any of them can leave the history.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from corral.controller.history.ended import EndedJob
from corral.controller.images.learning import Learnings
from corral.controller.images.plans import Plans, from_json
from corral.controller.journal import sql
from corral.controller.journal.record import UNREADABLE, Change, JournalRecord
from corral.controller.store import Store
from corral.core.access import Caller
from corral.core.errors import (
    Conflict,
    CorralError,
    LearningRunNotFound,
    StorageFailed,
)
from corral.core.images.learning_run import (
    LearningRunResult,
    StepJob,
    gathered,
    step_job,
    with_ratings,
)
from corral.core.job import PipelineCall, State, decode_document
from corral.core.malformed import MALFORMED
from corral.home import make_folder, write_private_json
from corral.pipelines.learning_plans import (
    NAME,
    LearningPlan,
    batch_plan,
    digest,
    encode,
    parse,
    seed_of,
)

log = structlog.get_logger()

PLAN, RESULT = "plan.json", "result.json"
AT_ONCE = 500
AGAIN_S = 5.0


class Run(Struct, frozen=True):
    """What is kept of a run that was submitted."""

    name: str
    batch: str
    jobs: int
    started_at: float
    digest: str
    plan: dict[str, Any]


class StartedRun(Struct, frozen=True):
    run: Run
    result: LearningRunResult
    warnings: list[str]


class LearningRuns:
    def __init__(self, plans: Plans, learnings: Learnings, store: Store, folder: Path) -> None:
        self._plans, self._learnings, self._store = plans, learnings, store
        self._folder = folder
        self._open: dict[str, Run] = {}
        """By batch: those that somebody may have to write down the result of."""
        self._due: set[str] = set()
        self._changed = asyncio.Event()
        self._starting = asyncio.Lock()
        """Of two plans with one name that come at once, the second is told."""
        for run in self.all():
            self._open[run.batch] = run
            if not (folder / run.name / RESULT).exists():
                self._due.add(run.batch)
        learnings.ended = self._ended

    # --- asking ---

    async def start(self, data: bytes, caller: Caller, *, dry_run: bool = False) -> StartedRun:
        """Submits the jobs of a plan, or finds the run that it is already."""
        plan = parse(from_json(data, "The learning plan"))
        async with self._starting:
            return await self._start(plan, caller, dry_run=dry_run)

    async def _start(self, plan: LearningPlan, caller: Caller, *, dry_run: bool) -> StartedRun:
        before: Run | None = None
        with contextlib.suppress(LearningRunNotFound):
            before = self._read(plan.name)
        if before is not None and before.digest != digest(plan):
            raise Conflict(
                f"There is a learning run {plan.name} with another plan. Give this one another "
                f"name, or look at that one: `corral learn --show {plan.name}`."
            )
        inner, key = msgspec.json.encode(batch_plan(plan)), f"learn:{plan.name}:{digest(plan)}"
        if dry_run:
            built = await self._plans.build(inner, key, caller)
            run = self._run(plan, "", len(built.jobs))
            return StartedRun(run, _outcome(replace(run, started_at=0.0), ()), built.warnings)
        warnings: list[str] = []
        if before is None:
            built = await self._plans.build(inner, key, caller)
            submitted = await self._plans.submit(built)
            before = self._run(plan, submitted.batch, len(submitted.jobs))
            warnings = submitted.warnings
            await self._keep(before)
        return StartedRun(before, await self._result(before), warnings)

    async def show(self, name: str) -> StartedRun:
        run = self._read(name)
        return StartedRun(run, await self._result(run), [])

    def all(self) -> list[Run]:
        """Newest last; one that cannot be read is left out."""
        found = []
        paths = (path.parent for path in self._folder.glob(f"*/{PLAN}"))
        named = [path for path in paths if NAME.fullmatch(path.name)]
        for name in (path.name for path in sorted(named, key=lambda path: path.stat().st_mtime)):
            try:
                found.append(self._read(name))
            except CorralError as error:
                log.warning("learning_run_unreadable", name=name, error=error.message)
        return found

    # --- keeping ---

    def _run(self, plan: LearningPlan, batch: str, jobs: int) -> Run:
        given: dict[str, Any] = msgspec.json.decode(encode(plan))
        return Run(plan.name, batch, jobs, time.time(), digest(plan), given)

    def _read(self, name: str) -> Run:
        path = self._folder / name / PLAN
        try:
            if NAME.fullmatch(name):
                return msgspec.json.decode(path.read_bytes(), type=Run)
        except FileNotFoundError:
            pass
        except (OSError, *MALFORMED) as error:
            raise StorageFailed(
                f"{path} cannot be read ({error}). Remove it, then start the run again."
            ) from error
        raise LearningRunNotFound(
            f"There is no learning run {name[:80]!r}. `corral learn --list` shows which there are."
        )

    async def _keep(self, run: Run) -> None:
        try:
            await asyncio.to_thread(self._write, run.name, PLAN, msgspec.to_builtins(run))
        except OSError as error:
            raise StorageFailed(
                f"The learning run could not be written down ({error.strerror}); its jobs are "
                f"submitted as the batch {run.batch}. Free some space, then start it again: it "
                "is the same run."
            ) from error
        self._open[run.batch] = run
        self._look_at(run.batch)

    def _write(self, name: str, file: str, value: dict[str, Any]) -> None:
        folder = self._folder / name
        make_folder(folder)
        write_private_json(folder / file, value)

    def _ended(self, change: Change) -> None:
        if change.head.batch in self._open:
            self._look_at(change.head.batch)

    def _look_at(self, batch: str) -> None:
        if batch not in self._store.world.batches:
            self._due.add(batch)
            self._changed.set()

    async def run(self) -> None:
        """Writes down the results of runs whose jobs have all ended."""
        while True:
            for batch in sorted(self._due):
                self._due.discard(batch)
                try:
                    await self._settle(self._open[batch])
                except CorralError as error:
                    log.error("learning_run_not_understood", batch=batch, error=error.message)
                except (OSError, *UNREADABLE) as error:
                    log.error("learning_run_not_written", batch=batch, error=str(error))
                    self._due.add(batch)
                    await asyncio.sleep(AGAIN_S)
            if not self._due:
                await self._changed.wait()
                self._changed.clear()

    async def _settle(self, run: Run) -> None:
        result = await self._computed(run)
        if result.complete:
            value = msgspec.to_builtins(result)
            await asyncio.to_thread(self._write, run.name, RESULT, value)
            log.info("learning_run_complete", run=run.name, jobs=result.ended)

    # --- reading ---

    async def _result(self, run: Run) -> LearningRunResult:
        path = self._folder / run.name / RESULT
        try:
            result = msgspec.json.decode(path.read_bytes(), type=LearningRunResult)
        except (FileNotFoundError, *MALFORMED):
            result = await self._computed(run)
        return with_ratings(result, await asyncio.to_thread(self._learnings.rated))

    async def _computed(self, run: Run) -> LearningRunResult:
        """From the journal, in a thread; what lives is added from memory."""
        living = [
            (head.id, head.submitted_seq, head.state.value, head.worker)
            for head in self._store.world.heads.values()
            if head.batch == run.batch
        ]
        names = dict(self._store.world.names)
        return await asyncio.to_thread(self._gathered, run, living, names)

    def _gathered(
        self, run: Run, living: list[tuple[str, int, str, str]], names: Mapping[str, str]
    ) -> LearningRunResult:
        jobs: dict[str, StepJob] = {}
        with contextlib.closing(sql.open_read_only(self._store.journal.path)) as reader:
            for job, submitted_seq, state, worker in living:
                if place := _place(reader, submitted_seq):
                    jobs[job] = StepJob(job, *place, state, names.get(worker, worker))
            for row in _rows(reader, run.batch):
                if (found := self._ended_job(reader, row, names)) is not None:
                    jobs[row.job] = found
        return _outcome(run, jobs.values())

    def _ended_job(
        self, reader: sqlite3.Connection, row: EndedJob, names: Mapping[str, str]
    ) -> StepJob | None:
        place = _place(reader, row.submitted_seq)
        if place is None or row.state == State.REJECTED:
            return None
        if row.state == State.SUCCEEDED:
            record = self._learnings.record(reader, row.last_seq, names)
            if record is not None:
                return step_job(record, *place)
        return StepJob(
            row.job,
            *place,
            row.state,
            names.get(row.worker, row.worker),
            seconds=row.seconds,
            ended_at=row.ended_at,
            code=row.code,
            message=row.message,
        )


def _rows(reader: sqlite3.Connection, batch: str) -> Iterator[EndedJob]:
    after = 0
    while rows := reader.execute(sql.ENDED_IN_BATCH, (batch, after, AT_ONCE)).fetchall():
        found = [EndedJob._make(row) for row in rows]
        yield from found
        after = found[-1].last_seq


def _place(reader: sqlite3.Connection, submitted_seq: int) -> tuple[int, int] | None:
    """Which step a job is of, and which of its images it makes."""
    record = JournalRecord.of(reader.execute(sql.RECORD, (submitted_seq,)).fetchone())
    if record is None or record.document is None:
        return None
    try:
        work = decode_document(record.document).work
    except MALFORMED:
        return None
    if not isinstance(work, PipelineCall):
        return None
    return work.record.learning.step, work.record.batch_index


def _outcome(run: Run, jobs: Iterable[StepJob]) -> LearningRunResult:
    plan = parse(run.plan)
    begun = LearningRunResult(
        name=run.name,
        batch=run.batch,
        variable=plan.variable,
        seed=seed_of(plan),
        planned=run.jobs,
        started_at=run.started_at,
    )
    return gathered(begun, plan.values, jobs)
