"""One attempt as the agent knows it: what it was sent, what it holds, how far it is.

One table of phases is its life here. An end by force is no phase but a verdict beside it
(`HeldAttempt.ending`): until its processes are gone an attempt is where it was, and what its runner
says still moves it.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec
from msgspec import Struct

from corral.agent.environments.builder import Spec
from corral.agent.runners.runner import NOBODY, Owner, Runner
from corral.core.job import KINDS, Blob, Failure, Input, JobId, Needs, QueueClass, ScriptCall
from corral.core.worker import Holding
from corral.protocol.messages import JobDispatch, JobStarted

Lane = tuple[Needs, float]
"""Needs, and the VRAM it must be above: attempts with equal ones fit alike."""
Rank = tuple[bool, int, int]
"""Interactive before batch, then by priority, then by arrival."""


class Phase(StrEnum):
    PREPARING = "preparing"
    """Its environment is built, or its input files are fetched."""
    WAITING = "waiting"
    """For room on this worker."""
    SENT = "sent"
    """To a runner, ahead of its turn."""
    STARTING = "starting"
    """It is its turn, and its runner has yet to say that it begins."""
    ASSUMED = "assumed"
    """It is its turn in a warm runner, which says nothing of that: it runs, by all we know."""
    RUNNING = "running"
    """The controller was told that it runs."""
    BEGUN = "begun"
    """The same, and its runner said so itself, which counts once."""
    OVER = "over"
    """Ended, or returned: this worker does not answer for it any more."""


class PhaseStep(StrEnum):
    PREPARED = "prepared"
    UNPREPARED = "unprepared"
    """Its environment was cleaned away or broken since."""
    SENT_AHEAD = "sent_ahead"
    TURN_COLD = "turn_cold"
    """The first that its runner runs."""
    TURN_WARM = "turn_warm"
    TAKEN_BACK = "taken_back"
    """Its runner had not taken it, and never will."""
    FETCHES = "fetches"
    """Its runner has to fetch something before it can begin."""
    TOLD = "told"
    """The controller hears that it runs."""
    BEGINS = "begins"
    """Its runner says that user code is next."""
    ENDS = "ends"


IN_TURN = (Phase.STARTING, Phase.ASSUMED, Phase.RUNNING, Phase.BEGUN)
"""It is the one that its runner runs, as far as we have heard."""

NEXT: dict[tuple[Phase, PhaseStep], Phase] = {
    (Phase.PREPARING, PhaseStep.PREPARED): Phase.WAITING,
    (Phase.WAITING, PhaseStep.UNPREPARED): Phase.PREPARING,
    (Phase.WAITING, PhaseStep.SENT_AHEAD): Phase.SENT,
    (Phase.WAITING, PhaseStep.TURN_COLD): Phase.STARTING,
    (Phase.WAITING, PhaseStep.TURN_WARM): Phase.ASSUMED,
    (Phase.SENT, PhaseStep.TURN_COLD): Phase.STARTING,
    (Phase.SENT, PhaseStep.TURN_WARM): Phase.ASSUMED,
    (Phase.SENT, PhaseStep.TAKEN_BACK): Phase.WAITING,
    **{(phase, PhaseStep.TAKEN_BACK): Phase.WAITING for phase in IN_TURN},
    (Phase.ASSUMED, PhaseStep.FETCHES): Phase.STARTING,
    (Phase.ASSUMED, PhaseStep.TOLD): Phase.RUNNING,
    (Phase.STARTING, PhaseStep.BEGINS): Phase.BEGUN,
    (Phase.ASSUMED, PhaseStep.BEGINS): Phase.BEGUN,
    (Phase.RUNNING, PhaseStep.BEGINS): Phase.BEGUN,
    **{(phase, PhaseStep.ENDS): Phase.OVER for phase in Phase if phase is not Phase.OVER},
}


class AttemptKind(Struct):
    """Of the work itself only which kind it is, and the caller's own modules of a function."""

    type: str
    code: Blob | None = None

    def __post_init__(self) -> None:
        if self.type not in KINDS:
            raise ValueError(f"it names no kind of work that is known here: {self.type[:100]!r}")


class Recipe(Struct):
    """The part of a job document that decides which process runs it."""

    work: AttemptKind
    """Image jobs bring no code: of theirs neither packages nor variables nor the user count."""
    python: str = ""
    requirements: tuple[str, ...] = ()
    env: dict[str, str] = {}
    fresh: bool = False
    inputs: tuple[Input, ...] = ()
    user: str = ""
    on_behalf: bool = False


decode_recipe = msgspec.json.Decoder(Recipe).decode


class HeldAttempt:
    """One try of one job on this worker."""

    __slots__ = (
        "code", "deadline", "dispatch", "ending", "fresh", "holding", "inputs", "key",
        "kills_before", "lane", "memory_seen", "owner", "phase", "rank", "reads", "recipe",
        "runner", "since", "spec", "started", "told", "waiting", "warned_at", "workload",
    )  # fmt: skip

    def __init__(self, dispatch: JobDispatch, recipe: Recipe, spec: Spec, arrival: int) -> None:
        self.dispatch = dispatch
        self.key: tuple[JobId, int] = (dispatch.job, dispatch.attempt)
        self.recipe = recipe
        kind = KINDS[recipe.work.type]
        self.workload = kind.workload
        brings_code = self.workload.brings_code
        self.owner: Owner = (recipe.user, recipe.on_behalf) if brings_code else NOBODY
        """Whose code runs, by the controller's word. Image jobs bring none: all share runners."""
        self.spec = spec
        self.lane: Lane = (dispatch.needs, dispatch.above_vram_gb)
        batch = dispatch.queue_class is not QueueClass.INTERACTIVE
        self.rank: Rank = (batch, -dispatch.priority, arrival)
        self.fresh = recipe.fresh or kind is ScriptCall
        self.inputs: dict[str, str] = {}
        """Where its input files are on this worker, by the names that the job knows."""
        self.reads: tuple[str, ...] = ()
        """What it may read beyond all others here."""
        self.code = ""
        """Where the zip of its own modules is on this worker."""
        self.phase = Phase.PREPARING
        self.waiting = False
        """Whether its entry among those that wait counts."""
        self.holding: Holding | None = None
        self.runner: Runner | None = None
        self.started: JobStarted | None = None
        self.since = 0.0
        self.deadline = math.inf
        self.warned_at = 0.0
        """The share of its duration after which it was last told of it."""
        self.memory_seen = 0
        self.kills_before = -1
        """How many processes the kernel had ended here for memory when its turn came."""
        self.told = 0
        """The number of the last thing it told."""
        self.ending: Failure | None = None
        """Why it is being ended by force; what its job still says then no longer counts."""

    def step(self, step: PhaseStep) -> None:
        self.phase = NEXT[self.phase, step]

    def can(self, step: PhaseStep) -> bool:
        return (self.phase, step) in NEXT
