"""`corral why`: what a job waits for, worker by worker, or how it came to where it is."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from itertools import islice

from msgspec import Struct

from corral.controller.store import Store
from corral.core.events import (
    ArtifactStored,
    AttemptPlaced,
    AttemptStarted,
    CheckpointStored,
    JobCancelled,
    JobExtended,
    JobFailed,
    JobMovedToFront,
    JobRejected,
    JobRequeued,
    JobStopping,
    JobSubmitted,
    JobSucceeded,
    Journaled,
    ResultOrphaned,
)
from corral.core.job import Head, JobId, QueueClass, State
from corral.core.text import in_grace, span
from corral.core.worker import Worker
from corral.scheduler.fit import Room, refuse_name, refuse_now
from corral.scheduler.plan import Seat, Snapshot, decide
from corral.scheduler.rank import Wanted, strongest

TOLD = 200
"""How much of what happened to a job is told at most, the newest."""


class Reason(Struct, frozen=True):
    job: JobId
    state: State
    summary: str
    workers: dict[str, str]
    """Why each worker does not take it now; an empty reason means that it would."""
    history: list[str]


def explain(
    store: Store,
    job: JobId,
    workers: Sequence[Worker],
    *,
    paused: str = "",
    now: Snapshot | None = None,
) -> Reason:
    """`paused` says why nothing is started at all, where that is so; `now` is what a decision would
    see: it tells what workers are kept free for."""
    head = store.head(job)
    names = store.world.names  # also of workers that were revoked since
    newest = [fact for _, fact in islice(store.newest(head), TOLD + 1)]
    facts = _real(newest[TOLD - 1 :: -1])
    history = [
        f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(fact.at))} {_sentence(fact, names)}"
        for fact in facts
    ]
    if len(newest) > TOLD:
        history.insert(0, f"of what happened, only the last {TOLD} things are told here")
    if head.state is not State.QUEUED:
        told = _sentence(_decisive(store.story(head)), names)
        if (worker := silent_worker(head, workers)) is not None:
            silent_s = max(time.time() - worker.seen_at, 0.0)
            told = f"{told} {in_grace(worker.name, silent_s)}"
        return Reason(job, head.state, told, {}, history)
    rooms = _rooms(store.world.seats(workers), time.time())
    if now is not None:
        _keep(head, rooms, now)
    wanted = Wanted((shape, len(line)) for shape, line in store.world.lines.items())
    waited_s = time.time() - head.submitted_at
    reasons = {
        room.worker.name: wanted.keeps_to(head.shape, waited_s, room, rooms)
        or refuse_now(head.shape, room)
        or ""
        for room in rooms
    }
    unknown = refuse_name(head.shape.needs, workers) or ""
    summary = _waiting(store, head, reasons, paused, unknown)
    return Reason(job, head.state, summary, reasons, history)


def silent_worker(head: Head, workers: Sequence[Worker]) -> Worker | None:
    """The one that has the job's attempt and is away, within its grace."""
    if head.state.ended or head.state is State.QUEUED:
        return None
    found = (worker for worker in workers if worker.id == head.worker)
    return next((worker for worker in found if not worker.connected), None)


def _rooms(seats: Sequence[Seat], now: float) -> list[Room]:
    rooms = []
    for seat in seats:
        rooms.append(Room(seat.worker, seat.held))
        rooms[-1].closed = seat.circuit.told(now, seat.attempts)
    return rooms


def _keep(head: Head, rooms: Sequence[Room], now: Snapshot) -> None:
    """Marks the workers that would have room and are not for this job, as the decision would."""
    plan = decide(now)
    if plan.overdue == head.id:
        return
    free_for_interactive: Collection[str] = ()
    if now.keep_for_interactive and head.shape.queue_class is QueueClass.BATCH:
        free_for_interactive = strongest(now.seats, now.keep_for_interactive, now.now)
    for room in rooms:
        if room.worker.id == plan.kept:
            room.kept_for = f"job {plan.overdue}, which has waited longest"
        elif room.worker.id in free_for_interactive:
            room.kept_for = "interactive jobs (keep_for_interactive)"


def _waiting(store: Store, head: Head, reasons: dict[str, str], paused: str, unknown: str) -> str:
    left = head.course.not_before - time.time()
    if paused:
        return paused
    if left > 0:
        return f"It failed before and is tried again in {left:.1f} s."
    if not reasons:
        return "No worker is known yet. Start one with `corral up` or `corral worker join`."
    if unknown:
        return f"It waits for a worker of that name, and {unknown}."
    if all(reasons.values()):
        return "No worker can take it now."
    ahead = store.world.position(head)
    if ahead:
        return f"{ahead} jobs of the same kind are before it."
    return "It is about to be placed."


def _real(facts: Sequence[Journaled]) -> list[Journaled]:
    """Without the ends of attempts that never were: a restored journal skips their numbers."""
    never = {fact.attempt for fact in facts if isinstance(fact, AttemptPlaced) and not fact.worker}
    return [fact for fact in facts if not (isinstance(fact, JobRequeued) and fact.attempt in never)]


def _decisive(facts: Sequence[Journaled]) -> Journaled:
    """The fact that says most about why a job is where it is."""
    beside = (AttemptStarted, JobExtended, ArtifactStored, CheckpointStored, ResultOrphaned)
    for fact in reversed(facts):
        if not isinstance(fact, beside):
            return fact
    return facts[-1]


def _sentence(fact: Journaled, names: dict[str, str]) -> str:
    match fact:
        case JobSubmitted():
            return f"submitted to the {fact.queue_class} queue"
        case JobRejected():
            return f"rejected ({fact.code}): {fact.message}"
        case JobMovedToFront():
            return "moved to the front of its line"
        case JobExtended():
            return f"given {span(fact.by_s)} more"
        case AttemptPlaced(worker=""):
            return f"the journal was {fact.why}: attempts go on above {fact.attempt}"
        case AttemptPlaced():
            where = names.get(fact.worker, fact.worker)
            return f"attempt {fact.attempt} placed on {where}: {fact.why}"
        case AttemptStarted():
            kind = "a warm process" if fact.warm else "a fresh process"
            on = f" with {', '.join(fact.devices)}" if fact.devices else ""
            return f"attempt {fact.attempt} started in {kind}{on}"
        case JobRequeued():
            said = fact.message if fact.message.endswith((".", "!", "?")) else f"{fact.message}."
            return f"attempt {fact.attempt} ended ({fact.code}): {said} Queued again."
        case JobStopping():
            return f"asked to stop attempt {fact.attempt}"
        case JobSucceeded():
            return f"attempt {fact.attempt} succeeded after {fact.seconds:.3f} s"
        case JobFailed():
            return f"attempt {fact.attempt} failed ({fact.failure.code}): {fact.failure.reason}"
        case JobCancelled():
            return "cancelled"
        case ArtifactStored():
            return f"stored artifact {fact.name} ({fact.size:,} bytes)"
        case CheckpointStored():
            return f"stored a checkpoint of {fact.size:,} bytes"
        case ResultOrphaned():
            return f"a late result of attempt {fact.attempt} ({fact.outcome}) was kept aside"
