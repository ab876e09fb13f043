"""The real scheduler in virtual time: the controller's world, `decide` and `settle`, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import count

from corral.controller.world import World
from corral.core.events import AttemptExited, AttemptPlaced, AttemptStarted, JobSubmitted
from corral.core.job import Failure, Head, Needs, Workload
from corral.core.lifecycle import advance, born
from corral.core.worker import GPU, Capabilities, Worker
from corral.scheduler.plan import decide
from corral.scheduler.settle import Policy, settle
from corral.simulate.cluster import SimulatedAttempt
from corral.simulate.trace import TracedJob

DIGEST = "simulated"
NEVER = -1e18


class Scheduled:
    """What the controller's loop and intake do, with facts applied at once."""

    classes = True

    def __init__(self, aging_s: float) -> None:
        self._aging_s = aging_s
        self._world = World()
        self._world.last_aged_at = NEVER
        self._works: dict[str, TracedJob] = {}
        self._workers: list[Worker] = []
        self._known: dict[tuple[str, bool, tuple[str, ...]], Worker] = {}
        self._policy = Policy()
        self._seq = count(1)
        self._due: float | None = None

    def arrived(self, work: TracedJob, now: float) -> None:
        job = str(work.number)
        self._works[job] = work
        fact = JobSubmitted(
            job=job,
            at=now,
            needs=_needs(work.vram_gb, work.model),
            digest=DIGEST,
            queue_class=work.queue_class,
            retries=work.retries,
        )
        self._world.apply(born(fact, next(self._seq)))

    def began(self, work: TracedJob, worker: str, now: float) -> None:
        head = self._head(work)
        at = now or 1e-9  # 0 in a head means that it has not started, and this clock begins there
        fact = AttemptStarted(
            job=head.id, at=at, attempt=head.attempt, devices=(device_of(worker),)
        )
        self._world.apply(advance(head, fact, next(self._seq)))

    def ended(
        self, work: TracedJob, worker: str, now: float, seconds: float, *, fails: bool
    ) -> bool:
        head = self._head(work)
        failure = Failure(code="exception", message="The description has it fail.")
        after = self._exit(head, now, seconds, failure if fails else None)
        if not fails:
            self._world.took(head.shape, seconds, worker, now)
        return not after.state.ended

    def lost(self, worker: str, held: Sequence[TracedJob], now: float) -> int:
        gone = Failure(code="worker_lost", message="An outage.")
        heads = list(self._world.held.get(worker, {}).values())
        return sum(self._exit(head, now, 0.0, gone).state.ended for head in heads)

    def orders(
        self, now: float, machines: Sequence[SimulatedAttempt]
    ) -> Sequence[tuple[TracedJob, str]]:
        self._workers = [self._worker(machine) for machine in machines]
        sent: list[tuple[TracedJob, str]] = []
        world = self._world
        self._due = world.wake_due(now)
        while world.lines:
            plan = decide(world.snapshot(now, self._workers, self._aging_s))
            if not plan.placements:
                break
            for placement in plan.placements:
                fact = AttemptPlaced(
                    job=placement.job,
                    at=now,
                    attempt=placement.attempt,
                    worker=placement.worker,
                    why=placement.why,
                    ahead=placement.ahead,
                )
                world.apply(advance(world.heads[placement.job], fact, next(self._seq)))
                sent.append((self._works[placement.job], placement.worker))
            if plan.turn:
                world.last_aged_at = now
        return sent

    def next_look(self, now: float) -> float | None:
        """The next retry or the next turn; what is due already waits for a worker to fall free."""
        times = [self._due] if self._due is not None else []
        oldest = self._world.oldest_wait()
        if oldest is not None:
            times.append(max(oldest, self._world.last_aged_at) + self._aging_s)
        return min((at for at in times if at > now), default=None)

    # --- inside ---

    def _exit(self, head: Head, now: float, seconds: float, failure: Failure | None) -> Head:
        exited = AttemptExited(
            head.id, head.attempt, head.worker, now, seconds, digest=DIGEST, failure=failure
        )
        fact = settle(
            head,
            exited,
            digest=exited.digest,
            now=now,
            policy=self._policy,
            workers=self._workers,
            jitter=0.5,
        )
        after = advance(head, fact, next(self._seq))
        self._world.apply(after)
        return after

    def _head(self, work: TracedJob) -> Head:
        return self._world.heads[str(work.number)]

    def _worker(self, machine: SimulatedAttempt) -> Worker:
        """As its agent would tell of it now."""
        key = (machine.name, machine.up, tuple(machine.loaded))
        if key not in self._known:
            can = Capabilities(
                cpus=1.0,
                memory_gb=64.0,
                gpus=(GPU(device_of(machine.name), "simulated", machine.vram_gb),),
                workloads=tuple(Workload),
                models_present=machine.present,
            )
            self._known[key] = Worker(
                id=machine.name,
                name=machine.name,
                engine="simulated",
                capabilities=can,
                connected=machine.up,
                models_loaded=tuple(machine.loaded),
            )
        return self._known[key]


@cache
def _needs(vram_gb: float, model: str) -> Needs:
    """One object for equal needs, as the scheduler is quick to see."""
    return Needs(gpus=1, vram_gb=vram_gb, models=(model,) if model else ())


def device_of(worker: str) -> str:
    return f"GPU-{worker}"
