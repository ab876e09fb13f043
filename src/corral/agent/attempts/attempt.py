"""One attempt as the agent knows it: what it was sent, what it holds, how far it is."""

from __future__ import annotations

import math

import msgspec
from msgspec import Struct

from corral.agent.attempts.phases import NEXT, Phase, PhaseStep
from corral.agent.environments.builder import Spec
from corral.agent.runners.runner import NOBODY, Owner, Runner
from corral.core.job import (
    KINDS,
    Failure,
    Input,
    JobId,
    Needs,
    QueueClass,
    ScriptCall,
    Workload,
)
from corral.core.worker import Holding
from corral.protocol.messages import JobDispatch, JobStarted

Lane = tuple[Needs, float]
"""Needs, and the VRAM it must be above: attempts with equal ones fit alike."""
Rank = tuple[bool, int, int]
"""Interactive before batch, then by priority, then by arrival."""


class AttemptKind(Struct):
    """Of the work itself only which kind it is."""

    type: str

    def __post_init__(self) -> None:
        if self.type not in KINDS:
            raise ValueError(f"it names no kind of work that is known here: {self.type[:100]!r}")


class Recipe(Struct):
    """The part of a job document that decides which process runs it."""

    work: AttemptKind
    """Of what Corral runs itself nothing else of this counts: neither packages nor variables."""
    python: str = ""
    requirements: tuple[str, ...] = ()
    env: dict[str, str] = {}
    fresh: bool = False
    inputs: tuple[Input, ...] = ()
    user: str = ""
    on_behalf: bool = False

    @property
    def workload(self) -> Workload:
        return KINDS[self.work.type].workload


decode_recipe = msgspec.json.Decoder(Recipe).decode


class HeldAttempt:
    """One try of one job on this worker."""

    __slots__ = (
        "deadline", "dispatch", "ending", "fresh", "holding", "inputs", "key", "lane",
        "memory_seen", "owner", "phase", "rank", "recipe", "runner", "since", "spec", "started",
        "told", "waiting", "workload",
    )  # fmt: skip

    def __init__(self, dispatch: JobDispatch, recipe: Recipe, spec: Spec, arrival: int) -> None:
        self.dispatch = dispatch
        self.key: tuple[JobId, int] = (dispatch.job, dispatch.attempt)
        self.recipe = recipe
        kind = KINDS[recipe.work.type]
        self.workload = kind.workload
        brings_code = self.workload.brings_code
        self.owner: Owner = (recipe.user, recipe.on_behalf) if brings_code else NOBODY
        """Whose code it is, as the controller wrote it down. Image jobs bring none, and share the
        process that has their model loaded."""
        self.spec = spec
        self.lane: Lane = (dispatch.needs, dispatch.above_vram_gb)
        batch = dispatch.queue_class is not QueueClass.INTERACTIVE
        self.rank: Rank = (batch, -dispatch.priority, arrival)
        self.fresh = recipe.fresh or kind is ScriptCall
        self.inputs: dict[str, str] = {}
        """Where its input files are on this worker, by the names that the job knows."""
        self.phase = Phase.PREPARING
        self.waiting = False
        """Whether its entry among those that wait counts."""
        self.holding: Holding | None = None
        self.runner: Runner | None = None
        self.started: JobStarted | None = None
        self.since = 0.0
        self.deadline = math.inf
        self.memory_seen = 0
        self.told = 0
        """The number of the last thing it told."""
        self.ending: Failure | None = None
        """Why it is being ended by force; what its job still says then no longer counts."""

    def step(self, step: PhaseStep) -> None:
        self.phase = NEXT[self.phase, step]

    def can(self, step: PhaseStep) -> bool:
        return (self.phase, step) in NEXT
