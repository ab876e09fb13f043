"""How far an attempt is on this worker: one table is its life here.

An end by force is no phase but a verdict beside it (`Attempt.ending`): until its processes are gone
an attempt is where it was, and what its runner says still moves it.
"""

from __future__ import annotations

from enum import StrEnum


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
